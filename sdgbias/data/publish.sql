-- What `sdgbias publish` reads of a run ($run).

-- name: run
-- config has the registry entry as it was when the run was made (early versions: none). model_id: OWNER/NAME on the hub; sdgbias/NAME for
-- embedded models and local folders, whose paths stay on this machine.
SELECT *, concat_ws('/', 'sdgbias', model_id, finished) AS evaluation_id FROM (
SELECT * EXCLUDE (config, title), coalesce(nullif(title, ''), model) AS title, config->>'$.spec.licence' AS model_licence, config->>'$.own.cluster_by' AS cluster_by,
       coalesce(config->>'$.sdgbias', 'unknown') AS version, epoch(finished_at)::BIGINT::VARCHAR AS finished,
       strftime(finished_at, '%Y-%m-%dT%H:%M:%S+00:00') AS finished_date,
       if(regexp_full_match(config->>'$.spec.repo', '[^/:]+/[^/:]+'), config->>'$.spec.repo', 'sdgbias/' || model) AS model_id
FROM runs WHERE run_id = ? AND finished_at IS NOT NULL)

-- name: numbers
-- An interval is NULL where there are too few clusters for one, or no variation between them. part: in the suite on people the groups compared and the classes pooled, '' elsewhere.
SELECT task, test, method, metric,
       concat_ws(', ', if(attribute = '', NULL, pillar_of(attribute, "group", other)), if($people, x::INT || ' classes', NULL)) AS part,
       "value", n, if(isfinite(low), low, NULL) AS ci_low, if(isfinite(high), high, NULL) AS ci_high, clusters
FROM numbers
WHERE run_id = $run AND study = 'headline' AND isfinite("value") AND indicator = 'all'
      AND (attribute = '' OR $people)
ORDER BY ALL

-- name: answers
-- The answers to the test split, for `cells` and `lines`. Prompts without an answer (infrastructure failures) have
-- none here; the run's n_failed counts them. $withheld: multiple-choice questions whose gold value may not be passed on.
WITH answers AS (
    SELECT p.*, coalesce(if(p.task = 'mcq', p.pred, p."value"::VARCHAR), '') AS answer, p.correct::INTEGER::DOUBLE AS score, q.text AS prompt,
           coalesce(if(p.task = 'mcq', i.gold, i.gold_value::VARCHAR), '') AS correct_answer,
           if(json_array_length(i.options) > 0, i.options::VARCHAR[], NULL) AS choices,
           i.pillar, i.indicator, i.country, i.year, i.image_id,
           concat_ws(' ', 'sdgbias', p.task, p.test, p.method) AS evaluation,
           concat_ws('/', p.run_id, p.task, p.test, p.method, if(p.task = 'mcq', 'accuracy', 'interval_accuracy')) AS result
    FROM predictions p
    JOIN items i ON i.benchmark_id = $benchmark AND i.task = p.task AND i.item_id = p.item_id
    JOIN read_parquet($prompts, hive_partitioning = false) q ON q.task = p.task AND q.item_id = p.item_id AND q.test = p.test
    WHERE p.run_id = $run AND p.split = 'test' AND p.method IN ('full', 'full_generated', 'cade')
          AND p.correct IS NOT NULL AND NOT (p.task = 'mcq' AND list_contains($withheld::BIGINT[], p.item_id))
)

-- name: cells
-- How many there are by task and test, and the bytes of their prompts.
SELECT task, test, count(*) AS "rows", sum(strlen(prompt)) AS bytes FROM answers GROUP BY ALL ORDER BY ALL

-- name: lines
-- A line of JSON each, as Every Eval Ever has them.
SELECT to_json({
    schema_version: $schema, evaluation_id: $evaluation, model_id: $model, evaluation_name: evaluation, evaluation_result_id: result,
    sample_id: concat_ws('_', task, test, item_id), sample_hash: sha256(prompt || correct_answer), interaction_type: 'single_turn',
    input: {raw: prompt, reference: [correct_answer], choices: choices},
    output: {raw: [answer]},
    answer_attribution: [
        {turn_idx: 0, source: 'output.raw', extracted_value: answer, extraction_method: method, is_terminal: true}],
    evaluation: {score: score, is_correct: correct},
    metadata: {pillar: pillar, indicator: indicator, country: country, year: year::VARCHAR, image_id: image_id}
})::VARCHAR AS line
FROM answers WHERE task = $task AND test = $test ORDER BY item_id, method
