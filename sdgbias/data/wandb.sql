-- What `sdgbias wandb` reads. $run_id: a run; $night, $model, $suite: its model in a night.

-- name: nights
SELECT night, bool_or(run_id IN (SELECT run_id FROM runs)) AS has_runs
FROM (SELECT night, '' AS run_id FROM nights UNION SELECT night, run_id FROM night_outcomes)
GROUP BY night ORDER BY night

-- name: outcomes
-- The facts of a night by the names that they have in W&B.
SELECT run_id, outcome AS "night/outcome", attempts AS "night/attempts", seconds AS "night/seconds", scored AS "night/scored",
       planned AS "night/planned", failed AS "night/failed"
FROM night_outcomes WHERE night = ? AND run_id IN (SELECT run_id FROM runs) ORDER BY model, suite

-- name: ids
SELECT count(*) AS rows, sha256(coalesce(string_agg(item_id, chr(10) ORDER BY task, item_id), '')) AS sha256_of_item_ids
FROM questions WHERE benchmark_id = $benchmark_id

-- name: numbers
-- Over all indicators, by flat names: a row for each value, n and bound (levels that differ only in punctuation share a name: one of them).
-- over_nights: those of the history, a selection, so that plots have few lines.
SELECT name || if(part = 'value', '', '/' || part) AS name, figure, over_nights FROM (
    SELECT concat_ws('/', task, test, method,
                     nullif(trim(regexp_replace(lower(pillar_of(attribute, "group", other)), '[^\pL\pN.]+', '-', 'g'), '-'), 'all'),
                     CASE WHEN parameter = 'classes' AND x = 52 THEN 'all-52' WHEN indicator = 'macro' THEN 'macro' END, metric) AS name,
           "value", n::DOUBLE AS n, low AS ci_low, high AS ci_high,
           metric = 'disparity' OR (attribute = '' AND
               metric IN ('accuracy', 'accuracy_gain', 'mae', 'mae_change', 'interval_accuracy', 'candidate_mass', 'off_candidate_rate',
                          'tie_rate', 'near_tie_rate', 'unparsed_rate', 'recall', 'share_optimistic', 'share_conservative',
                          'share_pessimistic')) AS over_nights
    FROM numbers
    WHERE run_id = $run_id AND study = 'headline' AND indicator IN ('all', 'macro') AND NOT coalesce(starts_with(missing_reason, 'needs '), false)
    QUALIFY row_number() OVER (PARTITION BY name ORDER BY "value" DESC NULLS LAST, n DESC) = 1
) UNPIVOT (figure FOR part IN ("value", n, ci_low, ci_high))
WHERE isfinite(figure) ORDER BY ALL

-- name: metrics
SELECT run_id, model, suite, task, test, method, pillar_of(attribute, "group", other) AS pillar,
       if(parameter = 'classes' AND x = 52, 'all-52', indicator) AS indicator,
       metric, "value", n, low AS ci_low, high AS ci_high, clusters, missing_reason, note
FROM numbers JOIN runs USING (run_id) WHERE run_id = $run_id AND study = 'headline' ORDER BY ALL

-- name: cade_params
SELECT * EXCLUDE (run_id) FROM cade_params WHERE run_id = $run_id ORDER BY task, test

-- name: gate
SELECT * EXCLUDE (night, model, suite, run_id, baseline)
FROM verdicts WHERE night = $night AND model = $model AND suite = $suite ORDER BY ALL
