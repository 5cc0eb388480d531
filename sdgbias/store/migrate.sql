-- Rows of results of schemas 15 to 19 (tables earlier_metrics and earlier_studies, as they were stored) as rows of `numbers`.

-- Why a metric has no value stood in the note of the differences between groups; the shares of answers beside them were 0.
UPDATE earlier_metrics SET missing_reason = note, note = ''
WHERE note IN ('no answer understood', 'no answer right') AND missing_reason IS NULL;

UPDATE earlier_metrics m SET "value" = NULL, ci_low = NULL, ci_high = NULL, clusters = 0, note = '', missing_reason = s.missing_reason
FROM earlier_metrics s
WHERE s.missing_reason = 'no answer understood' AND s.metric = 'disparity' AND m.run_id = s.run_id AND m.task = s.task
    AND m.test = s.test AND m.method = s.method AND m.metric IN ('recall', 'no_rate', 'unknown_rate', 'false_yes_rate');

UPDATE earlier_metrics SET missing_reason = 'fewer than 20' WHERE missing_reason IS NULL AND ("value" IS NULL OR isnan("value"));

-- A group of people was written into the pillar: 'gender=male', 'gender:male-female', 'gender=male & age=old'.
CREATE TEMP MACRO attribute_of(pillar, suite) AS CASE
    WHEN pillar = 'all' THEN '' WHEN suite = 'sdg' THEN 'pillar'
    WHEN suite = 'people' AND contains(pillar, ' & ') THEN regexp_replace(pillar, '^(\w+)=(\w+) & (\w+)=(\w+)$', '\1 x \3')
    ELSE regexp_extract(pillar, '^([^=:]*)[=:]', 1) END;
CREATE TEMP MACRO group_of(pillar, suite) AS CASE
    WHEN pillar = 'all' THEN '' WHEN suite = 'sdg' THEN pillar
    WHEN suite = 'people' AND contains(pillar, ' & ') THEN regexp_replace(pillar, '^(\w+)=(\w+) & (\w+)=(\w+)$', '\2 x \4')
    WHEN regexp_matches(pillar, '^[^=:]*:') THEN regexp_extract(pillar, ':(.*)-', 1)
    ELSE regexp_extract(pillar, '=(.*)$', 1) END;
CREATE TEMP MACRO other_of(pillar, suite) AS if(suite <> 'sdg' AND regexp_matches(pillar, '^[^=:]*:'), regexp_extract(pillar, '-([^-]*)$', 1), '');

INSERT INTO numbers BY NAME
SELECT run_id, 'headline' AS study, m.task, m.test, m.method,
       CASE WHEN metric IN ('accuracy_gain', 'mae_change', 'changed_rate', 'fixed_rate', 'broken_rate') THEN 'full'
            WHEN metric = 'gain_over_generated' THEN 'full_generated' ELSE '' END AS versus,
       attribute_of(pillar, r.suite) AS attribute,
       group_of(pillar, r.suite) AS "group", other_of(pillar, r.suite) AS other, if(indicator = 'all-52', 'all', indicator) AS indicator,
       if(r.suite = 'people' AND indicator IN ('all', 'all-52'), 'classes', '') AS parameter,
       CASE WHEN r.suite <> 'people' THEN NULL WHEN indicator = 'all' THEN 13 WHEN indicator = 'all-52' THEN 52 END AS x,
       metric, "value", n, clusters, ci_low AS low, ci_high AS high, missing_reason, note
FROM earlier_metrics m JOIN runs r USING (run_id);

INSERT INTO numbers BY NAME
WITH studied AS (
    SELECT s.*, regexp_extract(note, 'p: Holm over (\d+) tests, alone (\S+)$', ['many', 'alone']) AS holm,
           if("by" LIKE '% x target', regexp_replace("by", ' x target$', ''), "by") AS grouping,
           study = 'groups' AND "by" LIKE '% x target' AS per_target,
           if(study = 'groups' AND metric = 'disparity_change', level, metric) AS gap
    FROM earlier_studies s WHERE study NOT IN ('settings', 'compared'))
SELECT run_id, study, task, test, method,
       CASE WHEN study = 'paired' THEN regexp_replace(level, '^.* minus ', '')
            WHEN study = 'directions' AND starts_with(metric, 'full_minus_') THEN replace(metric, 'full_minus_', '')
            WHEN study = 'ablation' AND metric = 'step_gain' THEN
                CASE method WHEN '+alpha' THEN 'full' WHEN '+lambda' THEN '+alpha' WHEN '+beta' THEN '+lambda' ELSE '+beta' END
            WHEN study = 'search' AND metric = 'gain_over_random' THEN 'random'
            WHEN ends_with(metric, '_over_cade') THEN 'cade'
            WHEN study = 'fairness' AND ends_with(metric, '_change') THEN 'full_argmax'
            WHEN study = 'streams' AND metric = 'gain' OR study = 'divergence' THEN 'full'
            WHEN study IN ('methods', 'regression', 'groups') AND (ends_with(metric, '_gain') OR ends_with(metric, '_change')) THEN 'full'
            ELSE '' END AS versus,
       CASE WHEN study = 'fairness' THEN attribute_of(pillar, 'people') WHEN pillar <> 'all' THEN 'pillar'
            WHEN study IN ('ablation', 'streams', 'sweep', 'paired', 'selective', 'perturbation', 'harm', 'regression') THEN ''
            WHEN study = 'calibration' AND "by" = '' THEN '' ELSE grouping END AS attribute,
       CASE WHEN study = 'fairness' THEN group_of(pillar, 'people') WHEN pillar <> 'all' THEN pillar
            WHEN gap = 'max_min' THEN 'max' WHEN gap = 'with_minus_without_photo' THEN 'with photo'
            WHEN contains(gap, '_minus_') AND study = 'groups' THEN split_part(gap, '_minus_', 1)
            WHEN metric = 'gain_most_minus_least' THEN '5' WHEN study = 'divergence' THEN split_part(level, ' of ', 1)
            WHEN per_target THEN regexp_replace(level, ' x \w+$', '')
            WHEN study IN ('ablation', 'streams', 'sweep', 'paired', 'selective', 'perturbation', 'harm', 'regression') THEN ''
            ELSE level END AS "group",
       CASE WHEN study = 'fairness' THEN other_of(pillar, 'people') WHEN gap = 'max_min' THEN 'min'
            WHEN gap = 'with_minus_without_photo' THEN 'without photo' WHEN metric = 'gain_most_minus_least' THEN '1'
            WHEN contains(gap, '_minus_') AND study = 'groups' THEN split_part(gap, '_minus_', 2) ELSE '' END AS other,
       CASE WHEN per_target THEN regexp_extract(level, ' x (\w+)$', 1) WHEN study = 'regression' AND "by" = 'target' THEN level
            ELSE indicator END AS indicator,
       CASE WHEN study IN ('ablation', 'streams', 'perturbation', 'harm') THEN level WHEN study IN ('sweep', 'paired', 'selective') THEN "by"
            ELSE '' END AS parameter,
       x,
       CASE WHEN metric IN ('step_gain', 'gain_over_random') THEN 'gain'
            WHEN starts_with(metric, 'full_minus_') OR metric = 'gain_most_minus_least' THEN 'accuracy_gain'
            WHEN metric = 'error_in_tolerances_over_cade' THEN 'error_in_tolerances_change'
            WHEN ends_with(metric, '_over_cade') THEN regexp_replace(metric, '_over_cade$', '_gain')
            WHEN study = 'harm' AND ends_with("by", ' term') THEN concat(metric, '_by_', replace("by", ' ', '_'))
            WHEN study = 'groups' AND (metric = 'max_min' OR contains(metric, '_minus_')) THEN 'disparity' ELSE metric END AS metric,
       "value", n, 0 AS clusters, ci_low AS low, ci_high AS high,
       CASE WHEN holm['many'] <> '' THEN TRY_CAST(holm['alone'] AS DOUBLE) WHEN study = 'fairness' AND metric = 'disparity_change' THEN NULL
            ELSE p END AS p,
       CASE WHEN holm['many'] <> '' OR study = 'fairness' AND metric = 'disparity_change' THEN p END AS p_adjusted,
       CASE WHEN metric = 'not_run' THEN 'not scored' WHEN "value" IS NOT NULL AND NOT isnan("value") THEN NULL
            WHEN note = 'too few rows for a value' OR n < 20 OR study = 'groups' THEN 'fewer than 20' WHEN study = 'fairness' THEN 'no answer right'
            END AS missing_reason,
       CASE WHEN note = 'too few rows for a value' THEN ''
            ELSE regexp_replace(note, 'p: Holm over (\d+) tests, alone \S+$', 'Holm over \1 tests') END AS note
FROM studied;

INSERT INTO analyses
SELECT run_id, to_json(map(list(metric ORDER BY metric), list("value"::BIGINT ORDER BY metric)))
FROM earlier_studies WHERE study = 'settings' GROUP BY run_id ORDER BY run_id;
