-- Rows of `numbers` as pages and commands name them: beside their run, the questions of a row as one name (as in view metrics), and of a
-- p that was corrected the corrected one. What is infinite is no number.
SELECT run_id, model, suite, study, task, test, method, versus, pillar_of(attribute, "group", other) AS pillar,
       if(parameter = 'classes' AND x = 52, 'all-52', indicator) AS indicator,
       metric, if(isfinite("value"), "value", NULL) AS "value", n,
       if(isfinite(low), low, NULL) AS ci_low, if(isfinite(high), high, NULL) AS ci_high,
       clusters, coalesce(p_adjusted, p) AS p, missing_reason, note, attribute, "group", other, parameter, x
FROM numbers JOIN runs USING (run_id)
