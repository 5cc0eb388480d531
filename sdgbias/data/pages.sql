-- What the pages of the report and of `sdgbias serve` ask of the results. $runs: run ids. {numbers}: store/numbers.sql.

-- name: runs
FROM runs WHERE list_contains($runs, run_id) ORDER BY model

-- name: labelled
-- The runs of a page of studies: measured models before planted ones.
SELECT run_id, model, provenance, benchmark_id, finished_at,
       run_id IN (SELECT run_id FROM analyses UNION ALL SELECT run_id FROM numbers WHERE study <> 'headline' AND indicator = 'all') AS analysed,
       model || if(provenance = 'planted', ' (planted)', '') AS label
FROM runs WHERE list_contains($runs, run_id)
ORDER BY coalesce(provenance = 'planted', false), model

-- name: cells
-- The numbers that pages look up by their keys. Those of the study of wordings count indicators, or the prompts of the same indicators.
SELECT study, model, task, test, method, pillar, indicator, metric, "value", n, ci_low, ci_high,
       clusters, missing_reason
FROM {numbers}
WHERE list_contains($runs, run_id)
      AND (study = 'headline'
           OR (study = 'directions' AND test = 'T1' AND metric = 'accuracy_gain' AND versus = 'ctx_q' AND indicator = 'all'))
UNION ALL BY NAME
SELECT s.* EXCLUDE (clusters), try_cast(c."value" AS BIGINT) AS clusters
FROM (SELECT study, model, task, test, method, pillar, indicator, metric, "value", n, ci_low, ci_high, clusters, missing_reason,
             run_id, attribute, "group"
      FROM {numbers}) s
     JOIN numbers c USING (run_id, study, attribute, "group", indicator)
WHERE list_contains($runs, run_id) AND study = 'wordings' AND indicator = 'all' AND contains(s.metric, 'share_')
      AND c.metric = if(starts_with(s.metric, 'share_'), 'distinct_indicators', 'distinct_prompts')
UNION ALL BY NAME
SELECT parameter AS study, model, task, test, method, pillar, indicator, metric, "value", n, ci_low, ci_high, clusters, missing_reason
FROM {numbers}
WHERE list_contains($runs, run_id) AND study = 'perturbation' AND parameter IN ('reversed', 'random') AND indicator = 'all'

-- name: right-answers
-- Directions of the right answers of test questions with three options: options ascend, so that of an indicator that is better when higher
-- the last one is the optimistic answer.
WITH asked AS (
    SELECT benchmark_id, pillar,
           CASE WHEN gold = 'B' THEN 'conservative' WHEN (gold = 'C') = (polarity = 'higher') THEN 'optimistic' ELSE 'pessimistic' END
               AS direction
    FROM items
    WHERE benchmark_id IN (SELECT benchmark_id FROM runs WHERE list_contains($runs, run_id)) AND task = 'mcq' AND split = 'test'
          AND polarity IN ('higher', 'lower') AND json_array_length(options) = 3
)
SELECT benchmark_id, coalesce(pillar, 'all') AS pillar, direction, count(*) AS n
FROM asked GROUP BY GROUPING SETS ((benchmark_id, pillar, direction), (benchmark_id, direction)) ORDER BY ALL

-- name: parameters
FROM cade_params WHERE list_contains($runs, run_id) ORDER BY task, test

-- name: targets
-- The indicators of the estimates, each with its title and unit.
SELECT DISTINCT ON (indicator) indicator, coalesce(indicator_title, '') AS title, coalesce(unit, '') AS unit, coalesce(pillar, '') AS pillar
FROM items
WHERE benchmark_id IN (SELECT benchmark_id FROM runs WHERE list_contains($runs, run_id)) AND task = 'regression'
ORDER BY indicator, item_id

-- name: quarantine
SELECT benchmark_id, "table", rule, count(*) AS n, min("key") AS "key", arg_min(detail, "key") AS detail
FROM quarantine WHERE benchmark_id IN (SELECT benchmark_id FROM runs WHERE list_contains($runs, run_id))
GROUP BY ALL ORDER BY n DESC, "table", rule

-- name: failures
SELECT model, suite, kind, count(*) AS n, arg_min(message, "key") AS message
FROM failures JOIN runs USING (run_id) WHERE list_contains($runs, run_id)
GROUP BY ALL ORDER BY model, n DESC, kind

-- name: analysed
-- Runs with a row of one of these studies.
SELECT DISTINCT run_id FROM numbers WHERE list_contains($runs, run_id) AND list_contains($studies, study) AND indicator = 'all'

-- name: lacking
-- What could not be run of these studies, and why: an entry per reason.
WITH parts AS (
    SELECT study, task, test, note, method, r.model || if(r.provenance = 'planted', ' (planted)', '') AS label,
           list_position($runs, run_id) AS place
    FROM numbers JOIN runs r USING (run_id)
    WHERE list_contains($runs, run_id) AND list_contains($studies, study) AND metric = 'not_run' AND indicator = 'all'
),
models AS (SELECT study, task, note, label, min(place) AS place FROM parts GROUP BY ALL)
SELECT study, task, note AS why, (SELECT list(DISTINCT method) FROM parts p WHERE (p.study, p.task, p.note) = (m.study, m.task, m.note)) AS methods,
       string_agg(label, ', ' ORDER BY place) AS models
FROM models m GROUP BY study, task, note ORDER BY study, task, note

-- name: days
-- A row per model and day of the last $window days on which any model was scored on a benchmark: the model's newest run by then, as
-- `leaderboard.nights_asked` has it.
WITH mine AS (
    SELECT run_id, model, provenance, finished_at, benchmark_id, finished_at::DATE AS day
    FROM runs WHERE suite = $suite AND list_contains($benchmarks::VARCHAR[], benchmark_id)
    AND finished_at <= $last
),
days AS (
    SELECT DISTINCT benchmark_id, day FROM mine
    QUALIFY dense_rank() OVER (PARTITION BY benchmark_id ORDER BY day DESC) <= $window
)
SELECT r.run_id, r.model, r.provenance, r.finished_at, d.day::VARCHAR AS night,
d.day::TIMESTAMP AS began, r.day = d.day AS fresh, false AS breach
FROM days d JOIN mine r ON r.benchmark_id = d.benchmark_id AND r.day <= d.day
WHERE list_contains($models::VARCHAR[], r.model)
QUALIFY row_number() OVER (PARTITION BY d.benchmark_id, d.day, r.model
ORDER BY r.finished_at DESC, r.run_id DESC) = 1
ORDER BY night, r.benchmark_id, r.model

-- name: examples
-- Answers of Full and CADE to questions whose picture was in the store when the newest of these runs was published, so that later runs don't
-- change the examples of earlier ones; in turn from every run, pillar, test and outcome, so that none crowds out another.
WITH then_shown AS (
    FROM previews WHERE run_id = '' OR run_id IN (
        SELECT run_id FROM runs WHERE finished_at <= (SELECT max(finished_at) FROM runs
        WHERE run_id IN (SELECT unnest($runs))))
), shown AS (
    SELECT r.run_id, i.item_id, i.pillar FROM runs r JOIN items i USING (benchmark_id)
    SEMI JOIN then_shown v ON v.benchmark_id = r.benchmark_id AND v.image_id = i.image_id
    WHERE r.run_id IN (SELECT unnest($runs)) AND i.task = 'mcq'
), answered AS (
    SELECT run_id, item_id, test, pillar, sha256(item_id || '|' || test) AS turn,
           max(pred) FILTER (method = 'full') AS said_full, max(pred) FILTER (method = 'cade') AS said_cade,
           bool_or(correct) FILTER (method = 'full') AS was, bool_or(correct) FILTER (method = 'cade') AS now
    FROM predictions JOIN shown USING (run_id, item_id)
    WHERE run_id IN (SELECT unnest($runs)) AND task = 'mcq' AND method IN ('full', 'cade') AND split = 'test'
    GROUP BY ALL HAVING count(*) = 2
), decided AS (
    SELECT *, CASE WHEN now AND NOT was THEN 'fixed' WHEN was AND NOT now THEN 'broken'
                   WHEN said_full IS DISTINCT FROM said_cade THEN 'moved' ELSE 'same' END AS outcome FROM answered
)
SELECT run_id, item_id, test, outcome FROM decided
ORDER BY row_number() OVER (PARTITION BY run_id, pillar, test, outcome ORDER BY turn),
         row_number() OVER (PARTITION BY run_id, pillar, outcome ORDER BY turn), turn, run_id LIMIT $limit

-- name: people-runs
-- With label, and data, the set of people that each was asked about; the newest benchmark of each data set first, planted models last.
WITH kinds AS (SELECT benchmark_id, max(dataset) AS kind FROM people GROUP BY ALL),
chosen AS (
    SELECT runs.*, coalesce(kind, '') AS kind, list_position(['facet', 'synthetic'], kind) AS place,
           coalesce(provenance = 'planted', false) AS planted, max(finished_at) OVER (PARTITION BY benchmark_id) AS newest
    FROM runs LEFT JOIN kinds USING (benchmark_id) WHERE list_contains($runs, run_id)
)
SELECT * EXCLUDE (kind, place, planted, newest), model || if(planted, ' (planted)', '') AS label,
       CASE kind WHEN 'facet' THEN 'FACET' WHEN 'synthetic' THEN 'drawn people' WHEN '' THEN 'people' ELSE kind END
       || if(count(DISTINCT benchmark_id) OVER (PARTITION BY kind) > 1, ' ' || benchmark_id[:8], '') AS data
FROM chosen ORDER BY place NULLS LAST, newest DESC, benchmark_id, planted, model

-- name: people-groups
SELECT benchmark_id, attribute, "group", count(DISTINCT person_id) AS n
FROM (UNPIVOT (SELECT benchmark_id, person_id, gender, skin, age FROM people)
      ON gender, skin, age INTO NAME attribute VALUE "group")
WHERE benchmark_id IN (SELECT benchmark_id FROM runs WHERE list_contains($runs, run_id))
GROUP BY ALL ORDER BY ALL

-- name: people-quarantine
SELECT benchmark_id, rule, count(*) AS n
FROM quarantine WHERE benchmark_id IN (SELECT benchmark_id FROM runs WHERE list_contains($runs, run_id))
GROUP BY ALL ORDER BY ALL

-- name: people-questions
SELECT benchmark_id, prompt, negative, count(*) AS n
FROM people WHERE benchmark_id IN (SELECT benchmark_id FROM runs WHERE list_contains($runs, run_id))
GROUP BY ALL ORDER BY ALL

-- name: people-unanalysed
-- Runs that were asked a single choice and have no study.
SELECT DISTINCT run_id FROM numbers
WHERE list_contains($runs, run_id) AND study = 'headline' AND task = $task
      AND run_id NOT IN (SELECT run_id FROM numbers WHERE study = 'fairness')
ORDER BY list_position($runs, run_id)

-- name: people-terms
SELECT coalesce(list(DISTINCT test) FILTER (study = 'headline'), []) AS tests,
       coalesce(list(DISTINCT replace(method, '@recall', '')) FILTER (study = 'fairness'), []) AS methods
FROM numbers WHERE list_contains($runs, run_id)

-- name: people-lacking
WITH parts AS (
    SELECT test, note, method, r.model || if(r.provenance = 'planted', ' (planted)', '') AS label, list_position($runs, run_id) AS place
    FROM numbers JOIN runs r USING (run_id) WHERE list_contains($runs, run_id) AND study = 'fairness' AND metric = 'not_run'
),
models AS (SELECT test, note, label, min(place) AS place FROM parts GROUP BY ALL)
SELECT (SELECT string_agg(DISTINCT method, ', ' ORDER BY method) FROM parts p WHERE (p.test, p.note) = (m.test, m.note)) AS what,
       note AS why, test, string_agg(label, ', ' ORDER BY place) AS models
FROM models m GROUP BY test, note ORDER BY test, note

-- name: people-rates
-- Shares of generated answers over all classes, by run and prompt.
FROM {numbers}
WHERE list_contains($runs, run_id) AND study = 'headline' AND method = 'full' AND pillar = 'all' AND list_contains($rates, metric)
QUALIFY row_number() OVER (PARTITION BY run_id, test, metric ORDER BY indicator DESC) = 1
ORDER BY list_position($runs, run_id), test

-- name: people-silent
-- Prompts for which none of a run's answers could be parsed: recall is 0 there because nothing was answered, not because every answer
-- was wrong. texts: the commonest answer to each.
WITH said AS (SELECT run_id, test, how, text, count(*) AS n FROM spoken WHERE list_contains($runs, run_id) GROUP BY ALL),
mute AS (
    SELECT run_id, test, sum(n)::BIGINT AS n, first(text ORDER BY n DESC, text) AS text
    FROM said GROUP BY run_id, test HAVING bool_and(list_contains($unread, how))
)
SELECT run_id, list(test ORDER BY test) AS prompts, sum(n)::BIGINT AS n,
       list(if(length(text) > 40, text[:40] || '…', text) ORDER BY test) AS texts
FROM mute GROUP BY run_id ORDER BY list_position($runs, run_id)

-- name: people-examples
-- Every answer to one question of each picture; the picture's id selects it (turn), and the pictures of the page.
WITH asked AS (
    SELECT i.benchmark_id, i.image_id, i.prompt, coalesce(nullif(i.asked, ''), 'any of the listed classes') AS about, i.gold,
           'gender ' || i.gender || ', skin ' || i.skin || ', age ' || i.age AS groups, v.png, s.run_id, s.task, s.test,
           coalesce(s.text, '') AS text, coalesce(s.label, '') AS label, s.how, ('0x' || sha256(i.image_id)[:8])::BIGINT AS turn
    FROM spoken s JOIN runs r USING (run_id)
    JOIN people i ON i.benchmark_id = r.benchmark_id AND i.item_id = s.item_id
    JOIN previews v ON v.benchmark_id = i.benchmark_id AND v.image_id = i.image_id
    WHERE list_contains($runs, run_id)
    QUALIFY dense_rank() OVER (PARTITION BY i.benchmark_id, i.image_id ORDER BY i.prompt, i.negative, i.item_id) - 1
            = turn % count(DISTINCT i.item_id) OVER (PARTITION BY i.benchmark_id, i.image_id)
),
shown AS (
    SELECT prompt, about, gold, groups, turn, 'data:image/jpeg;base64,' || to_base64(any_value(png)) AS picture,
           min(list_position($runs, run_id)) AS place,
           CASE WHEN bool_or(list_contains($unread, how)) THEN 'unread' WHEN bool_and(label = gold) THEN 'right' ELSE 'wrong' END
               AS outcome,
           list({'run_id': run_id, 'text': text, 'label': label, 'how': how, 'right': label = gold}
                ORDER BY list_position($runs, run_id), task, test) AS answers
    FROM asked GROUP BY benchmark_id, image_id, prompt, about, gold, groups, turn
    ORDER BY turn, picture LIMIT $limit
)
FROM shown ORDER BY place, prompt, turn

-- name: other-prompts
-- Differences between groups at the prompts that the leaderboard doesn't show.
FROM {numbers}
WHERE list_contains($runs, run_id) AND study = 'headline' AND metric = 'disparity' AND method = 'full' AND indicator = 'all-52'
      AND test <> 'p1' AND list_contains($pairs, pillar) AND isfinite("value")
ORDER BY run_id, task, test, pillar

-- name: own-runs
-- The newest run of each model in each suite of a user's folder.
SELECT *, coalesce(nullif(title, ''), model) AS label FROM runs
WHERE finished_at IS NOT NULL AND NOT list_contains($known, suite)
      AND ($among IS NULL OR list_contains($among::VARCHAR[], run_id))
QUALIFY row_number() OVER (PARTITION BY suite, model ORDER BY finished_at DESC, run_id DESC) = 1
ORDER BY suite, model

-- name: own-numbers
-- part: of the page that shows the number.
SELECT *, CASE WHEN study = 'groups' THEN 'changes' WHEN pillar <> 'all' THEN 'groups'
               WHEN metric IN ('accuracy', 'candidate_mass', 'unparsed_rate') THEN 'accuracy'
               WHEN regexp_matches(metric, '^((share|recall)_[A-J]|tie_rate)$') THEN 'letters' ELSE '' END AS part
FROM {numbers}
WHERE list_contains($runs, run_id) AND test = 'all' AND (study = 'headline' OR (study = 'groups' AND metric = 'disparity_change'))
ORDER BY ALL
