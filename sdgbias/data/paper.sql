-- Numbers of the paper's tables (analysis/paper/numbers.py). `every` holds all numbers of all runs; $runs: the chosen ones, and
-- $benchmarks: theirs. Columns that a query leaves out are those of KEY, and no interval. Of rows with one key the first counts.
-- status: why there is no value. A number of a benchmark has its id in place of a run's, one of all of them none.

-- name: runs
-- kind: 'measured', 'planted' (a formula, no weights) or 'embedded' (a small model trained here and shipped with the repository).
SELECT run_id, model, suite, benchmark_id, seed, numerics, CASE WHEN provenance = 'planted' THEN 'planted'
       WHEN (config->>'$.spec.repo') LIKE 'local:%' THEN 'embedded' ELSE 'measured' END AS kind,
       coalesce((config->>'synthetic')::BOOLEAN, false) AS synthetic, coalesce(config->>'draws', '?') AS draws,
       coalesce(config->>'mode', 'not said') AS mode, coalesce(config->>'text_view', '') AS text_view,
       coalesce(config->>'$.hub.repo', '') AS questions, coalesce(left(config->>'$.hub.commit', 12), '') AS "commit"
FROM runs WHERE list_contains($runs, run_id) ORDER BY model, benchmark_id

-- name: stored
-- What a model can't have was never counted; the rows of a group that is too small were.
SELECT * EXCLUDE (model, suite, missing_reason) REPLACE (if(missing_reason LIKE 'needs %', NULL, n) AS n),
       CASE coalesce(missing_reason, '') WHEN '' THEN ''
       WHEN 'fewer than 20' THEN 'not in store: a group of fewer than 20 pictures has no value'
       ELSE 'not in store: ' || missing_reason END AS status
FROM every WHERE list_contains($runs, run_id)

-- name: studied
-- `versus` tells apart the numbers of a study that compares with several views alone.
SELECT * REPLACE (if(n > 0, n, NULL) AS n, if(study = 'directions', versus, '') AS versus)
FROM stored WHERE study <> 'headline' AND x IS NULL

-- name: headline
-- With the means over T1 to T5 (of the pooled answers' interval where every test has the same questions, so that pool and mean
-- agree) and what CADE changes relative to the Original; the change of interval accuracy is paired, where the run was analysed.
WITH plain AS (SELECT * REPLACE ('' AS versus, '' AS parameter) FROM stored WHERE study = 'headline'),
whole AS (FROM plain WHERE pillar = 'all' AND indicator = 'all' AND "value" IS NOT NULL),
means AS (
    SELECT run_id, method, metric, any_value(COLUMNS(['value', 'n', 'ci_low', 'ci_high'])) FILTER (test = 'all') AS "pool_\0",
           sum("value" ORDER BY test) FILTER (test <> 'all') / 5 AS mean
    FROM whole WHERE task = 'mcq' AND metric IN ('accuracy', 'accuracy_gain')
    GROUP BY run_id, method, metric HAVING count(*) FILTER (test <> 'all') = 5
),
changes AS (
    SELECT run_id, test, metric, any_value("value") FILTER (method = 'full') AS original,
           any_value("value") FILTER (method = 'cade') - original AS change, change / nullif(original, 0) AS relative
    FROM whole WHERE task = 'regression' GROUP BY ALL
)
FROM plain
UNION ALL BY NAME
SELECT run_id, method, metric, 'mean' AS test, mean AS "value", pool_n AS n, if(agree, pool_ci_low, NULL) AS ci_low,
       if(agree, pool_ci_high, NULL) AS ci_high
FROM (SELECT *, abs(pool_value - mean) < 1e-9 AS agree FROM means)
UNION ALL BY NAME
SELECT run_id, 'cade' AS method, 'mean' AS test, 'relative_gain' AS metric, (cade.mean - original.mean) / nullif(original.mean, 0) AS "value"
FROM means AS original JOIN means AS cade USING (run_id, metric)
WHERE metric = 'accuracy' AND original.method = 'full' AND cade.method = 'cade'
UNION ALL BY NAME
SELECT * REPLACE ('interval_accuracy_gain' AS metric, '' AS versus, '' AS status)
FROM stored WHERE study = 'regression' AND metric = 'interval_accuracy_change' AND indicator = 'all'
UNION ALL BY NAME
SELECT run_id, 'regression' AS task, test, 'cade' AS method, unnest([
    {'metric': if(metric = 'mae', 'relative_mae_change', 'relative_interval_gain'), 'value': relative},
    {'metric': if(metric = 'mae', '', 'interval_accuracy_gain'), 'value': change}], recursive := true)
FROM changes WHERE metric IN ('mae', 'interval_accuracy')

-- name: methods
-- Debiasing methods beside the views and CADE.
FROM headline UNION ALL BY NAME FROM studied WHERE study = 'methods'

-- name: ablation
-- Its first step is the plain accuracy, where it wasn't analysed.
FROM studied WHERE study = 'ablation' AND "value" IS NOT NULL
UNION ALL BY NAME
SELECT * REPLACE (unnest(['retuned', 'zeroed']) AS parameter) FROM headline WHERE metric = 'accuracy' AND method = 'full'

-- name: streams
FROM studied WHERE study = 'streams'
UNION ALL BY NAME
SELECT run_id, method, parameter, metric, 'mean' AS test, sum("value" ORDER BY test) / 5 AS "value", sum(n) AS n
FROM studied WHERE study = 'streams' AND pillar = 'all' AND test <> 'all'
GROUP BY run_id, method, parameter, metric HAVING count("value") = 5

-- name: leans
-- Which way answers lean: over all wordings of a run's questions, where it was asked several, else of the plain question. A
-- number of prompts has no interval.
WITH worded AS (SELECT DISTINCT run_id FROM stored WHERE study = 'wordings' AND metric <> 'not_run'),
leaning AS (
    FROM studied WHERE study = 'wordings' UNION ALL BY NAME FROM headline ANTI JOIN worded USING (run_id)
)
SELECT * REPLACE (if(metric = 'distinct_prompts', NULL, n) AS n, if(metric = 'distinct_prompts', NULL, ci_low) AS ci_low) FROM leaning

-- name: sweep
-- What Figure 8 shows of each curve: the tuned value, the best on val (the smallest of several) and where its plateau begins,
-- which is the smallest x from which it never falls more than 0.005 below its best value, where two points or more do so; the
-- accuracy at the best, the lowest and the highest on test.
WITH points AS (
    SELECT *, max("value") FILTER (method = 'val') OVER (PARTITION BY run_id, test, parameter) AS best
    FROM stored WHERE study = 'sweep' AND metric = 'accuracy' AND task = 'mcq' AND "value" IS NOT NULL
),
curves AS (
    SELECT run_id, test, parameter, list({'x': x, 'value': "value"} ORDER BY x) FILTER (method = 'val') AS val,
           min(x) FILTER (method = 'val' AND "value" = best) AS best_x,
           coalesce(max(x) FILTER (method = 'val' AND "value" < best - 0.005), '-infinity'::DOUBLE) AS last_low
    FROM points GROUP BY ALL HAVING count(*) FILTER (method = 'val') > 0 AND count(*) FILTER (method = 'test') > 0
),
flat AS (SELECT *, list_filter(val, lambda point: point.x > last_low) AS plateau FROM curves),
tests AS (
    SELECT *, row_number() OVER (PARTITION BY run_id, test, parameter ORDER BY "value", x) AS upwards,
           row_number() OVER (PARTITION BY run_id, test, parameter ORDER BY "value" DESC, x DESC) AS downwards
    FROM points JOIN curves USING (run_id, test, parameter) WHERE method = 'test'
)
SELECT run_id, test, parameter, '' AS method, 'best_on_val' AS metric, best_x AS "value" FROM curves
UNION ALL BY NAME
SELECT run_id, test, parameter, '' AS method, 'plateau_from' AS metric, if(len(plateau) > 1, plateau[1].x, NULL) AS "value",
       'not in store: none: the curve falls again before the end of the range' AS status
FROM flat
UNION ALL BY NAME
SELECT run_id, test, parameter, '' AS method, "value", n, ci_low, ci_high, unnest(list_filter(
    ['test_there', 'lowest', 'highest'], lambda name, i: [x = best_x, upwards = 1, downwards = 1][i])) AS metric
FROM tests
UNION ALL BY NAME
SELECT run_id, test, parameter, '' AS method, 'tuned' AS metric, "value", n, ci_low, ci_high
FROM studied JOIN curves USING (run_id, test, parameter) WHERE study = 'sweep' AND metric = 'optimum' AND task = 'mcq'

-- name: costs
-- What the four views cost (Tables K and L), from the seconds that a run's batches took. By question: plain inference under Full
-- (the first token's scores of a multiple-choice question, where the model gives any, else the free answer), and CADE (the scores
-- of the four views and, for a number, the answers of Full). By view: its share of the seconds of scoring and of the prompts' tokens.
-- Seconds are added in one order, or their last digits would differ from one time to the next.
WITH asked AS (
    SELECT run_id, coalesce(bool_and(missing_reason IS DISTINCT FROM 'needs log-probabilities'), true) AS scored,
           coalesce(bool_and(missing_reason IS DISTINCT FROM 'needs pictures'), true) AS pictured
    FROM runs LEFT JOIN numbers USING (run_id) WHERE list_contains($runs, run_id) GROUP BY run_id
),
times AS (FROM timings JOIN asked USING (run_id) WHERE "view" IN ('full', 'img_q', 'ctx_q', 'q_only')),
untimed AS (SELECT *, unnest(['mcq', 'regression']) AS task FROM asked ANTI JOIN times USING (run_id)),
parts AS (
    SELECT run_id, task, scored, pictured, 'full' AS method, 1 AS needed, true AS timed, "view", cells, prompts, untimed,
           seconds_alone AS seconds
    FROM times WHERE "view" = 'full' AND phase = if(task = 'mcq' AND scored, 'score', 'decode')
    UNION ALL BY NAME
    SELECT run_id, task, scored, pictured, 'cade' AS method, 4 AS needed, true AS timed, if(phase = 'score', "view", NULL) AS "view",
           if(phase = 'score', prompts, 0) AS prompts, if(phase = 'score', untimed, 0) AS untimed, seconds_measured AS seconds
    FROM times WHERE phase = 'score' OR (task = 'regression' AND "view" = 'full')
    UNION ALL BY NAME
    SELECT DISTINCT run_id, task, scored, pictured, unnest(['full', 'cade']) AS method, unnest([1, 4]) AS needed, true AS timed FROM times
    UNION ALL BY NAME
    SELECT run_id, task, scored, pictured, unnest(['full', 'cade']) AS method, unnest([1, 4]) AS needed, false AS timed FROM untimed
),
by_method AS (
    SELECT run_id, task, method, timed, sum(cells) AS asked, sum(seconds ORDER BY seconds) AS seconds, CASE
           WHEN NOT timed THEN 'not in store: the run is of a version that kept no times'
           WHEN count(DISTINCT "view") < needed AND NOT pictured THEN 'needs pictures'
           WHEN count(DISTINCT "view") < needed AND NOT scored THEN 'needs log-probabilities'
           WHEN count(DISTINCT "view") < needed THEN 'not in store: not all views have an answer'
           WHEN sum(untimed) > 0 THEN format('not in store: {:,} of {:,} prompts came from the cache of a version that kept no times',
                                             sum(untimed)::BIGINT, sum(prompts)::BIGINT)
           ELSE '' END AS reason
    FROM parts GROUP BY run_id, task, scored, pictured, method, needed, timed
),
by_question AS (
    SELECT a.*, plain.asked AS n, plain.seconds AS plain, coalesce(nullif(a.reason, ''), plain.reason) AS status
    FROM by_method AS a JOIN by_method AS plain USING (run_id, task) WHERE plain.method = 'full'
),
by_view AS (
    SELECT run_id, scored, pictured, unnest(['full', 'img_q', 'ctx_q', 'q_only']) AS "view" FROM asked
),
spent AS (
    SELECT run_id, "view", sum(seconds_measured ORDER BY task) AS seconds, sum(prompts) AS n, sum(untimed) AS untimed
    FROM times WHERE phase = 'score' GROUP BY ALL
),
lengths AS (
    SELECT run_id, "view", sum(n_tokens)::DOUBLE AS tokens, count(*) AS asked
    FROM scores WHERE list_contains($runs, run_id) AND n_tokens > 0 GROUP BY ALL
),
views AS (
    SELECT run_id, "view", seconds, n, asked, tokens / sum(tokens) OVER run AS token_share, seconds / nullif(sum(seconds) OVER run, 0) AS share,
           CASE WHEN run_id NOT IN (SELECT run_id FROM times) THEN
                    if(scored, 'not in store: the run is of a version that kept no times', 'needs log-probabilities')
                WHEN NOT pictured AND spent.run_id IS NULL THEN 'needs pictures'
                WHEN NOT scored THEN 'needs log-probabilities'
                WHEN sum(untimed) OVER run > 0 THEN
                    format('not in store: {:,} of {:,} prompts came from the cache of a version that kept no times',
                           (sum(untimed) OVER run)::BIGINT, (sum(n) OVER run)::BIGINT)
                ELSE '' END AS status
    FROM by_view LEFT JOIN spent USING (run_id, "view") LEFT JOIN lengths USING (run_id, "view")
    WINDOW run AS (PARTITION BY run_id ORDER BY "view" ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)
),
named AS (
    SELECT run_id, task, method, status, unnest([
               {'metric': 'seconds_per_question', 'value': if(status = '' AND n > 0, seconds / n, NULL), 'n': n},
               {'metric': 'relative_cost', 'value': if(status = '' AND n > 0, seconds / nullif(plain, 0), NULL), 'n': n}], recursive := true)
    FROM by_question
    UNION ALL BY NAME
    SELECT run_id, "view" AS method, unnest([
               {'metric': 'runtime_share', 'value': if(status = '', share, NULL), 'n': n, 'status': status},
               {'metric': 'seconds', 'value': if(status = '' AND share IS NOT NULL, seconds, NULL), 'n': n, 'status': status},
               {'metric': 'token_share', 'value': token_share, 'n': asked,
                'status': coalesce(nullif(status, ''), 'not in store: prompt lengths are missing')}], recursive := true)
    FROM views
)
SELECT * REPLACE (if("value" IS NULL, NULL, n) AS n) FROM named

-- name: rows
-- A study as it is stored, but for rows of single indicators: metric (in versus) and what the value is of (in parameter).
WITH lines AS (
    SELECT *, concat_ws(' ', nullif(test, 'all'), nullif(method, ''), 'minus ' || nullif(versus, ''), nullif(pillar, 'all'),
                        nullif(indicator, 'all'), nullif(parameter, ''), format('{:g}', x)) AS "of"
    FROM every WHERE list_contains($runs, run_id) AND study = $of AND (indicator = 'all' OR attribute <> 'pillar') ORDER BY ALL
)
SELECT run_id, task, metric AS versus, "of" AS parameter, unnest([
           {'metric': 'value', 'value': "value", 'n': if("value" IS NULL, NULL, nullif(n, 0)), 'ci_low': ci_low, 'ci_high': ci_high,
            'status': 'not in store: ' || coalesce(nullif(note, ''), missing_reason, 'no value')},
           {'metric': if(p IS NULL, '', 'p'), 'value': p, 'n': NULL, 'ci_low': NULL, 'ci_high': NULL, 'status': ''}], recursive := true)
FROM lines

-- name: claims
-- What the abstract claims: the change by CADE of all tests, and the largest of one test.
WITH changes AS (
    SELECT *, metric = 'accuracy_gain' AS accuracy FROM headline
    WHERE metric IN ('accuracy_gain', 'mae_change') AND coalesce(pillar, 'all') = 'all' AND coalesce(indicator, 'all') = 'all'
          AND "value" IS NOT NULL
)
SELECT * REPLACE ('mean' AS test) FROM changes WHERE test = if(accuracy, 'mean', 'all')
UNION ALL BY NAME
SELECT * REPLACE ('largest' AS test) FROM changes WHERE test NOT IN ('all', 'mean')
QUALIFY row_number() OVER (PARTITION BY run_id, metric ORDER BY if(accuracy, -"value", "value"), test) = 1

-- name: parameters
SELECT run_id, task, test, 'cade' AS method, if(metric = 'val_value', n_val, NULL) AS n, metric, "value"
FROM (UNPIVOT cade_params ON alpha, lambda_kl, beta, tau, val_value INTO NAME metric VALUE "value")
WHERE list_contains($runs, run_id) ORDER BY ALL

-- name: composition
SELECT benchmark_id AS run_id, coalesce(pillar, 'all') AS pillar, unnest([
           {'task': 'mcq', 'metric': 'questions', 'value': mcq}, {'task': 'mcq', 'metric': 'questions_each_test', 'value': 5 * mcq},
           {'task': 'regression', 'metric': 'questions', 'value': regression}], recursive := true)
FROM (SELECT benchmark_id, pillar, count_if(task = 'mcq') AS mcq, count_if(task = 'regression') AS regression
      FROM items WHERE list_contains($benchmarks, benchmark_id) GROUP BY GROUPING SETS ((benchmark_id, pillar), (benchmark_id)))

-- name: tolerances
SELECT '' AS run_id, target AS indicator, 'stored_tolerance' AS metric, 'counted' AS kind, count(*) AS n,
       if(min(tolerance) = max(tolerance), min(tolerance), NULL) AS "value", 'not in store: several tolerances' AS status
FROM items WHERE list_contains($benchmarks, benchmark_id) AND task = 'regression' GROUP BY target

-- name: quality
SELECT benchmark_id AS run_id, "table" AS versus, rule AS parameter, 'rows' AS metric, count(*) AS "value"
FROM quarantine WHERE list_contains($benchmarks, benchmark_id) GROUP BY ALL ORDER BY ALL

-- name: people
SELECT benchmark_id AS run_id, pillar, 'people' AS metric, count(DISTINCT person_id) AS "value"
FROM (SELECT *, unnest(['all', 'gender=' || gender, 'skin=' || skin, 'age=' || age]) AS pillar FROM people)
WHERE list_contains($benchmarks, benchmark_id) GROUP BY ALL

-- name: letters
-- Answers by place that are A, B or C, by test and pooled.
SELECT run_id, method, coalesce(test, 'all') AS test, coalesce(cluster_id, '') AS place, count(*)::DOUBLE AS n,
       count_if(pred = 'A')::DOUBLE AS A, count_if(pred = 'B')::DOUBLE AS B, count_if(pred = 'C')::DOUBLE AS C
FROM answers WHERE list_contains($runs, run_id) AND task = 'mcq' AND split = 'test'
GROUP BY GROUPING SETS ((run_id, method, test, place), (run_id, method, place)) ORDER BY ALL

-- name: gold
-- Questions by place whose right answer is A, B or C, and those with two options, by pillar and of all.
SELECT benchmark_id AS run_id, coalesce(pillar, 'all') AS pillar, coalesce(cluster_id, '') AS place, count(*)::DOUBLE AS n,
       count_if(gold = 'A')::DOUBLE AS A, count_if(gold = 'B')::DOUBLE AS B, count_if(gold = 'C')::DOUBLE AS C,
       count_if(json_array_length(options) = 2)::DOUBLE AS two_options
FROM items WHERE list_contains($benchmarks, benchmark_id) AND task = 'mcq'
GROUP BY GROUPING SETS ((run_id, pillar, place), (run_id, place)) ORDER BY ALL

-- name: reasons
-- Why a run has no numbers: what its model lacks (of the headline), and what a study says, of a method and ('') of all. A row
-- without a task: that the run was analysed, or has numbers of the study.
SELECT run_id, '' AS study, task, method, missing_reason AS reason FROM every
WHERE list_contains($runs, run_id) AND study = 'headline' AND missing_reason IN ('needs pictures', 'needs log-probabilities')
UNION ALL BY NAME
SELECT run_id, study, task, unnest(['', method]) AS method, note AS reason FROM stored WHERE metric = 'not_run'
UNION ALL BY NAME
SELECT DISTINCT run_id, study, '' AS task, '' AS method, '' AS reason FROM stored
UNION ALL BY NAME
SELECT run_id, 'analyses' AS study, '' AS task, '' AS method, '' AS reason FROM analyses WHERE list_contains($runs, run_id)
