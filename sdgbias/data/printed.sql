-- Tables that commands print: `sdgbias results`, `demo`, `evaluate` and `models show`. $runs: run ids, $floor: of candidate mass.

-- name: newest
SELECT suite, model, run_id, task, test, method, metric, value, n, low AS ci_low, high AS ci_high, missing_reason
FROM numbers JOIN runs USING (run_id)
WHERE study IN ('headline', 'methods') AND attribute = '' AND indicator = 'all' AND list_contains($runs, run_id)
      AND method IN ('q_only', 'ctx_q', 'img_q', 'full', 'full_generated', 'cade')
      AND (metric IN ('accuracy', 'mae', 'interval_accuracy', 'accuracy_gain', 'mae_change', 'share_optimistic', 'share_conservative',
                      'share_pessimistic')
           OR (metric = 'candidate_mass' AND test = 'all' AND value < $floor))
ORDER BY suite, model, task, metric, test, method

-- name: accuracy
SELECT model, method, value AS accuracy, ci_low AS low, ci_high AS high, n
FROM metrics
WHERE task = 'mcq' AND test = 'all' AND pillar = 'all' AND indicator = 'all' AND metric = 'accuracy'
      AND method IN ('q_only', 'ctx_q', 'img_q', 'full', 'cade') AND list_contains($runs, run_id)
ORDER BY model, list_position(['q_only', 'ctx_q', 'img_q', 'full', 'cade'], method)

-- name: people
SELECT model,
       (SELECT any_value(dataset) FROM people p WHERE p.benchmark_id = r.benchmark_id) AS people,
       test, pillar_of(attribute, "group", other) AS groups, value AS disparity, low, high, n, coalesce(missing_reason, '') AS note
FROM numbers JOIN runs r USING (run_id)
WHERE study = 'headline' AND method = 'full' AND metric = 'disparity' AND (x = 52 OR test IN ('gender', 'age'))
      AND "group" <> 'max' AND list_contains($runs, run_id)
ORDER BY model, people, r.benchmark_id, test, groups

-- name: recalls
-- Recall of people, all classes pooled.
SELECT model,
       (SELECT any_value(dataset) FROM people p WHERE p.benchmark_id = r.benchmark_id) AS people,
       test, value AS recall, low, high, n, coalesce(missing_reason, '') AS note
FROM numbers JOIN runs r USING (run_id)
WHERE study = 'headline' AND method = 'full' AND metric = 'recall' AND (x = 52 OR test IN ('gender', 'age'))
      AND attribute = '' AND list_contains($runs, run_id)
ORDER BY model, people, r.benchmark_id, test

-- name: groups
-- Disparities of custom questions.
SELECT suite, model, attribute AS groups, method, value AS disparity, low, high, n
FROM numbers JOIN runs USING (run_id)
WHERE study = 'headline' AND test = 'all' AND metric = 'disparity' AND list_contains($runs, run_id)
ORDER BY suite, model, groups, method

-- name: evaluated
-- What a run says first: accuracy and mean absolute error, recall of people, over all tests; of a
-- model that names no letter the accuracy in words, of the tests that were answered so; candidate mass where it is low.
SELECT model, task, test, method, metric, value, ci_low AS low, ci_high AS high, n
FROM metrics
WHERE list_contains($runs, run_id) AND pillar = 'all'
      AND ((test = 'all' AND indicator = 'all' AND (metric IN ('accuracy', 'mae') OR (metric = 'candidate_mass' AND value < $floor)))
           OR (method = 'full_generated' AND indicator = 'all' AND metric = 'accuracy' AND run_id NOT IN
               (SELECT run_id FROM metrics WHERE test = 'all' AND metric = 'accuracy'))
           OR (indicator = 'all-52' AND metric = 'recall' AND method = 'full'))
ORDER BY model, task, metric, test, method

-- name: nights
SELECT night, suite, outcome, run_id, kind, message
FROM night_outcomes
WHERE model = $model
ORDER BY night DESC, suite
LIMIT 5

-- name: runs
SELECT run_id, suite, strftime(finished_at, '%Y-%m-%d %H:%M UTC') AS finished, n_scored, n_failed,
       left(revision, 12) AS revision
FROM runs
WHERE model = $model
ORDER BY runs.finished_at DESC
LIMIT 5

-- name: failures
-- Why prompts have no score, the commonest reason first.
SELECT kind, min(message) AS message, count(*) AS n FROM failures WHERE list_contains($runs, run_id)
GROUP BY kind ORDER BY n DESC, kind
