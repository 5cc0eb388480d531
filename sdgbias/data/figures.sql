-- The rows of the figures of figures.yaml. They select from every_row, the numbers of the runs shown ($runs, in their order;
-- $data: what each was asked about), and from overall, those of them over all indicators. Rows come in the order of the figure's table;
-- those without a value are told of, not drawn.

-- name: every_row
SELECT n.* REPLACE (r.model || if(r.provenance = 'planted', ' (planted)', '') AS model,
                    if(test = 'all', 'all tests', test) AS test,
                    if(attribute = 'pillar', "group", 'all pillars') AS pillar),
       r.model AS name, $data[list_position($runs, run_id)] AS data, n.pillar AS level, list_position($runs, run_id) AS run_at,
       if(n.test = 'all', '', n.test) AS test_at, coalesce(list_position($pillars, n.pillar), 99) AS pillar_at,
       row_number() OVER (ORDER BY run_at, study, task, test_at, pillar_at, method, metric, attribute, "group", parameter, x, other)
           AS row_at
FROM {numbers} n JOIN runs r USING (run_id)
WHERE list_contains($runs, run_id)

-- name: overall
FROM every_row WHERE indicator = 'all' AND metric <> 'not_run'

-- name: people
-- The rows about people. mute: nothing that the model says was understood, so figures open on another one; silent: a disparity without a
-- value, since the model says nothing about groups; plain, operating: method and operating point of the study of debiasing.
SELECT *, min(run_at) OVER (PARTITION BY data) AS data_at,
       model IN (SELECT model FROM every_row WHERE study = 'headline' AND metric = 'disparity' AND method = 'full'
                 AND missing_reason = 'no answer understood') AS mute,
       metric = 'disparity' AND coalesce(missing_reason IN ('no answer understood', 'no answer right'), false) AS silent,
       replace(replace(method, '@recall', ''), 'full_argmax', 'full') AS plain,
       if(ends_with(method, '@recall'), 'at equal recall', 'as scored') AS operating
FROM every_row WHERE NOT ends_with(method, ':paper')

-- name: model-views
FROM overall
WHERE study = 'headline' AND task = 'mcq' AND metric = 'accuracy' AND pillar = 'all pillars' AND test = 'T1'
      AND method IN ('q_only', 'ctx_q', 'img_q', 'full')
ORDER BY list_position(['q_only', 'ctx_q', 'img_q', 'full'], method)

-- name: model-cade
FROM overall
WHERE study = 'headline' AND task = 'mcq' AND metric = 'accuracy' AND pillar = 'all pillars' AND test <> 'all tests'
      AND method IN ('full', 'cade')
ORDER BY test, method = 'cade'

-- name: image-use
SELECT * REPLACE (name AS model) FROM overall
WHERE study = 'directions' AND test = 'T1' AND metric = 'accuracy_gain' AND versus = 'ctx_q' AND pillar <> 'all pillars'
ORDER BY pillar_at, name

-- name: methods-accuracy
FROM overall
WHERE study IN ('methods', 'headline') AND metric = 'accuracy' AND task = 'mcq'
      AND model IN (SELECT model FROM overall WHERE study = 'methods' AND metric = 'accuracy' AND task = 'mcq')
ORDER BY run_at, test_at, pillar_at, study = 'headline', row_at

-- name: methods-gain
FROM overall
WHERE (study = 'methods' OR (study = 'headline' AND method = 'cade')) AND metric = 'accuracy_gain' AND task = 'mcq'
      AND model IN (SELECT model FROM overall WHERE study = 'methods' AND metric = 'accuracy_gain' AND task = 'mcq')
ORDER BY run_at, test_at, pillar_at, study = 'headline', row_at

-- name: methods-estimation
FROM overall
WHERE study IN ('methods', 'headline') AND metric = 'interval_accuracy' AND task = 'regression' AND pillar = 'all pillars'
      AND model IN (SELECT model FROM overall WHERE study = 'methods' AND metric = 'interval_accuracy' AND task = 'regression'
                    AND pillar = 'all pillars')
ORDER BY run_at, test_at, pillar_at, study = 'headline', row_at

-- name: perturbation
SELECT o.*, split_part(o.metric, '_', 2) AS direction, format('{:,}', coalesce(c.value, 0)::BIGINT) AS prompts
FROM overall o LEFT JOIN (FROM overall WHERE study = 'perturbation' AND metric = 'distinct_prompts') c
     USING (model, pillar, parameter)
WHERE o.study = 'perturbation' AND o.metric IN ('share_pessimistic', 'share_conservative', 'share_optimistic')
ORDER BY o.row_at

-- name: directions
SELECT *, split_part(metric, '_', 2) AS direction FROM overall
WHERE study = 'directions'
      AND (metric IN ('answered_pessimistic', 'answered_conservative', 'answered_optimistic', 'answered_invalid')
           OR (metric IN ('share_pessimistic', 'share_conservative', 'share_optimistic') AND method = 'cade'
               AND model IN (SELECT model FROM overall WHERE study = 'directions' AND starts_with(metric, 'answered_'))))
ORDER BY run_at, test_at, pillar_at, method = 'cade', row_at

-- name: directions-two
SELECT *, split_part(metric, '_', 2) AS direction FROM overall
WHERE study = 'directions' AND metric IN ('share_pessimistic_two_option', 'share_optimistic_two_option')
ORDER BY row_at

-- name: ablation
FROM overall WHERE study = 'ablation' AND metric IN ('accuracy', 'mae') ORDER BY task, row_at

-- name: streams
FROM overall WHERE study = 'streams' AND metric IN ('accuracy', 'mae') ORDER BY task, row_at

-- name: divergence
FROM overall WHERE study = 'divergence' AND metric = 'accuracy_gain' ORDER BY row_at

-- name: sweep
SELECT o.*, b.value AS best, coalesce(printf('%.4g', b.value), '') AS optimum, coalesce(printf('%.4g', o.x), '') AS at
FROM overall o LEFT JOIN (FROM overall WHERE study = 'sweep' AND metric = 'optimum') b USING (model, task, test, parameter)
WHERE o.study = 'sweep' AND o.metric IN ('accuracy', 'mae')
ORDER BY list_position(['alpha', 'lambda_kl', 'beta', 'tau'], parameter), task, o.row_at

-- name: search
SELECT * REPLACE (regexp_replace(metric, '^(val|held_out)_', '') AS metric), metric AS seen FROM overall
WHERE study = 'search' AND metric IN ('val_accuracy', 'val_mae', 'held_out_accuracy', 'held_out_mae', 'accuracy', 'mae')
ORDER BY task, row_at

-- name: search-optimism
SELECT * REPLACE (if(task = 'mcq', 'accuracy_gain', 'mae_change') AS metric) FROM overall
WHERE study = 'search' AND metric = 'optimism' ORDER BY task, row_at

-- name: groups
SELECT * REPLACE (replace("group", ' x ', ', ') AS "group") FROM overall
WHERE study = 'groups' AND metric = 'accuracy' AND task = 'mcq' AND method IN ('full', 'cade') ORDER BY row_at

-- name: groups-gaps
FROM overall WHERE study = 'groups' AND metric = 'disparity' ORDER BY row_at

-- name: groups-change
FROM overall WHERE study = 'groups' AND metric = 'disparity_change' ORDER BY row_at

-- name: harm-fixed
SELECT * REPLACE (split_part(note, ';', 1) AS note) FROM overall
WHERE study = 'harm' AND metric IN ('fixed', 'broken', 'net') ORDER BY row_at

-- name: harm-implausible
FROM overall WHERE study = 'harm' AND metric = 'implausible' ORDER BY row_at

-- name: harm-flips
FROM overall WHERE study = 'harm' AND metric IN ('share_of_flips_by_first_term', 'share_of_flips_by_largest_term') ORDER BY row_at

-- name: harm-net
FROM overall WHERE study = 'harm' AND metric IN ('net_of_flips_by_first_term', 'net_of_flips_by_largest_term') ORDER BY row_at

-- name: calibration-reliability
SELECT * REPLACE (round(100 * x, 3) AS x), printf('%.1f %%', round(100 * x, 3)) AS confidence FROM overall
WHERE study = 'calibration' AND metric IN ('reliability_width', 'reliability_mass') ORDER BY row_at

-- name: calibration-risk
SELECT * REPLACE (round(100 * x, 3) AS x), printf('%.0f %%', round(100 * x, 3)) AS coverage FROM overall
WHERE study = 'selective' AND metric = 'risk' ORDER BY row_at

-- name: calibration-scores
FROM overall
WHERE (study = 'calibration' AND metric IN ('ece_width', 'ece_mass', 'brier', 'nll', 'confidence', 'accuracy'))
      OR (study = 'selective' AND metric = 'aurc')
ORDER BY run_at, test_at, pillar_at,
         list_position(['ece_width', 'ece_mass', 'brier', 'nll', 'confidence', 'accuracy', 'aurc'], metric), row_at

-- name: fairness
-- pair_at: the pairs of groups of the headline first.
SELECT *, concat("group", '-', other) AS by, test AS prompt, NOT list_contains($pairs, level) AS pair_at FROM people
WHERE study = 'headline' AND metric = 'disparity' AND other <> '' AND indicator IN ('all-52', 'all', 'macro')
ORDER BY run_at, task, test, method, level, indicator

-- name: fairness-classes
-- A class without any value is not drawn; one with a value of another pair of groups shows its n.
SELECT *, concat("group", ' − ', other) AS source, indicator AS target,
       count(*) FILTER (NOT isnan("value")) OVER (PARTITION BY data, model, test, method, indicator) > 0 AS drawn
FROM people
WHERE study = 'headline' AND metric = 'disparity' AND list_contains($pairs, level) AND list_contains($classes, indicator)
ORDER BY run_at, task, test, method, level, indicator

-- name: fairness-prompts
-- Also the disparities of silent models, which are told of.
FROM people
WHERE study = 'headline' AND (silent OR (metric IN ('recall', 'false_yes_rate') AND level = 'all' AND indicator = 'all-52'))
ORDER BY run_at, task, test, method, metric

-- name: fairness-debiased
-- Each disparity with the change of its size against Full.
SELECT d.* REPLACE (plain AS method, plain AS name), level AS by, change FROM people d
     LEFT JOIN (SELECT run_id, test, method, level, {'value': "value", 'n': n, 'ci_low': ci_low, 'ci_high': ci_high, 'p': p} AS change
                FROM people WHERE study = 'fairness' AND metric = 'disparity_change') USING (run_id, test, method, level)
WHERE study = 'fairness' AND metric = 'disparity' ORDER BY run_at, test, method, level

-- name: fairness-cost
SELECT * REPLACE (plain AS method, plain AS name) FROM people
WHERE study = 'fairness' AND metric IN ('recall', 'false_yes_rate') AND level = 'all' AND operating = 'as scored'
ORDER BY run_at, test, method, metric
