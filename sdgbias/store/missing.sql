-- Numbers that a run can't have, each with its reason: its model was asked no view with a picture, or it gave no scores of candidates. They
-- follow from the run's settings and are written when it is published: of every view and of CADE the metrics of answers that the run has
-- of another method of the same task and test, and what CADE changes; of people what is read from scores. $run: NULL, every run.
INSERT INTO numbers BY NAME
WITH asked AS (
    SELECT run_id, coalesce((config ->> '$.gives_scores')::BOOLEAN, true) AS scores,
           coalesce(list_has_any((config -> '$.spec.views')::VARCHAR[], ['full', 'img_q']), true) AS pictures,
           (config -> '$.own.views')::VARCHAR[] AS own_views, coalesce(config ->> '$.own.cade_left_out', '') <> '' AS without_cade
    FROM runs WHERE $run IS NULL OR run_id = $run
),
here AS (
    SELECT * FROM numbers
    WHERE study = 'headline' AND attribute = '' AND indicator = 'all' AND run_id IN (SELECT run_id FROM asked)
),
wanted AS (
    SELECT DISTINCT run_id, task, test, metric, '' AS versus,
           unnest(['q_only', 'ctx_q', 'img_q', 'full', 'full_generated', 'cade']) AS method
    FROM here
    WHERE task IN ('mcq', 'regression') AND NOT regexp_matches(metric, '^(distinct_prompts|candidate_mass|.*_rate|.*gain.*|.*_change)$')
    UNION
    SELECT DISTINCT run_id, task, test,
           unnest(if(task = 'mcq', ['accuracy_gain', 'changed_rate', 'fixed_rate', 'broken_rate'], ['mae_change', 'changed_rate'])),
           'full', 'cade'
    FROM here WHERE task IN ('mcq', 'regression')
    UNION
    SELECT DISTINCT run_id, task, test, unnest(['recall', 'recall', 'candidate_mass']), '', unnest(['full_argmax', 'q_only', 'full'])
    FROM here WHERE task = 'choice'
),
reasons AS (
    SELECT wanted.*, CASE
        WHEN NOT pictures AND method NOT IN ('q_only', 'ctx_q') THEN 'needs pictures'
        WHEN NOT scores AND method <> 'full_generated' AND (task <> 'regression' OR method = 'cade') THEN 'needs log-probabilities'
        END AS missing_reason
    FROM wanted JOIN asked USING (run_id)
    WHERE CASE WHEN own_views IS NULL THEN true WHEN method = 'cade' THEN NOT without_cade
          ELSE list_contains(own_views, replace(method, '_generated', '')) END
)
SELECT run_id, 'headline' AS study, task, test, method, versus, '' AS attribute, '' AS "group", '' AS other, 'all' AS indicator,
       '' AS parameter, metric, 0 AS n, 0 AS clusters, missing_reason, '' AS note
FROM reasons ANTI JOIN here USING (run_id, task, test, method, metric)
WHERE missing_reason IS NOT NULL
ORDER BY ALL;
