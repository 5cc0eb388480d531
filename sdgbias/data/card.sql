-- The figures of a dataset card (benchmark/card/figures.py). Text is '' and a number NULL where it
-- is unknown. Tables: clusters, images, items_mcq, items_regression, items (both, with task),
-- prompts, series, quarantine (table, rule, what, n), coverage (indicator, usable: of the notes).

-- name: images_kind
SELECT CASE
         WHEN count(*) = 0 OR bool_and(starts_with(image_id, 'pending:')) THEN 'none'
         WHEN max(n_parts) > 1 THEN 'several'
         ELSE 'composite'
       END AS kind,
       count(*) AS images,
       count(DISTINCT nullif(image_group, '')) AS image_groups
FROM images

-- name: counts
SELECT (SELECT count(*) FROM clusters) AS clusters,
       (SELECT count(*) FROM items_mcq) AS items_mcq,
       (SELECT count(*) FROM items_regression) AS items_regression,
       (SELECT count(*) FROM prompts) AS prompts,
       count(DISTINCT cluster_id) AS clusters_used,
       count(DISTINCT nullif(cname, '')) AS countries_used
FROM items

-- name: label_shares
SELECT pillar, answer, 100 * (count(*) / sum(count(*)) OVER (PARTITION BY pillar)) AS percent
FROM items_mcq
GROUP BY pillar, answer
ORDER BY pillar, answer

-- name: by_country
WITH names AS (
  SELECT cname, max(country) AS country
  FROM (SELECT cname, country FROM clusters UNION ALL SELECT cname, country FROM items)
  GROUP BY cname
), pictured AS (
  SELECT cluster_id, bool_or(starts_with(modalities, 'photo')) AS photo,
         bool_or(modalities <> '') AS stated
  FROM images
  WHERE NOT starts_with(image_id, 'pending:')
  GROUP BY cluster_id
), places AS (
  SELECT cname, count(*) AS clusters, count(photo) AS clusters_with_image,
         count(*) FILTER (photo) AS clusters_with_photo
  FROM clusters LEFT JOIN pictured USING (cluster_id)
  GROUP BY cname
), asked AS (
  SELECT cname, count(DISTINCT cluster_id) AS clusters_used,
         count(*) FILTER (task = 'mcq') AS mcq, count(*) FILTER (task = 'regression') AS regression
  FROM items
  GROUP BY cname
)
SELECT cname, country,
       coalesce(clusters, 0) AS clusters,
       coalesce(clusters_with_image, 0) AS clusters_with_image,
       coalesce(clusters_with_photo, 0) AS clusters_with_photo,
       CASE WHEN (SELECT bool_or(stated) FROM pictured)
            THEN 100 * clusters_with_photo / nullif(clusters_with_image, 0) END AS photo_percent,
       coalesce(clusters_used, 0) AS clusters_used,
       coalesce(mcq, 0) AS mcq,
       coalesce(regression, 0) AS regression
FROM names LEFT JOIN places USING (cname) LEFT JOIN asked USING (cname)
ORDER BY cname

-- name: by_modalities
WITH shown AS (SELECT modalities, count(*) AS clusters FROM images GROUP BY modalities),
     asked AS (
       SELECT modalities, count(*) FILTER (task = 'mcq') AS mcq,
              count(*) FILTER (task = 'regression') AS regression
       FROM items
       GROUP BY modalities
     )
SELECT modalities,
       100 * coalesce(clusters, 0) / (SELECT count(*) FROM images) AS percent,
       coalesce(mcq, 0) AS mcq,
       coalesce(regression, 0) AS regression,
       coalesce(clusters, 0) AS clusters
FROM shown FULL JOIN asked USING (modalities)
ORDER BY modalities

-- name: by_years
SELECT if(year > 0, (floor(year / 5) * 5)::INT || '-' || (floor(year / 5) * 5 + 4)::INT, 'unknown')
         AS years,
       count(*) FILTER (task = 'mcq') AS mcq,
       count(*) FILTER (task = 'regression') AS regression,
       count(DISTINCT cluster_id) AS clusters,
       count(DISTINCT cname) AS countries
FROM items
GROUP BY years
ORDER BY years

-- name: sides
SELECT name, side,
       count(*) FILTER (task = 'mcq') AS mcq,
       count(*) FILTER (task = 'regression') AS regression,
       count(DISTINCT cluster_id) AS clusters,
       count(DISTINCT cname) AS countries
FROM (UNPIVOT items ON split, split_place INTO NAME name VALUE side)
GROUP BY name, side
ORDER BY name, side

-- name: on_both
WITH sides AS (
  SELECT name, side, cluster_id, cname
  FROM (UNPIVOT items ON split, split_place INTO NAME name VALUE side)
), places AS (
  SELECT name FROM sides WHERE cluster_id <> ''
  GROUP BY name, cluster_id HAVING count(DISTINCT side) > 1
), countries AS (
  SELECT name FROM sides WHERE cname <> '' GROUP BY name, cname HAVING count(DISTINCT side) > 1
)
SELECT name,
       (SELECT count(*) FROM places p WHERE p.name = n.name) AS clusters_on_both,
       (SELECT count(*) FROM countries c WHERE c.name = n.name) AS countries_on_both
FROM (VALUES ('split'), ('split_place')) n(name)

-- name: missing_labels
WITH known AS (
  UNPIVOT (
    SELECT count(asset_index) AS asset_index, count(water_index) AS water_index,
           count(sanitation_index) AS sanitation_index, count(under5_mort) AS under5_mort,
           count(women_edu) AS women_edu, count(women_bmi) AS women_bmi
    FROM clusters
  ) ON COLUMNS(*) INTO NAME label VALUE here
)
SELECT label, n - here AS missing, n, 100 * (n - here) / nullif(n, 0) AS percent
FROM known, (SELECT count(*) AS n FROM clusters)

-- name: missing_values
WITH lost AS (
  SELECT "table"[7:] AS task, what AS indicator, rule, n
  FROM quarantine
  WHERE starts_with("table", 'items_') AND what <> ''
), asked AS (
  SELECT task, indicator, count(*) AS questions FROM items GROUP BY task, indicator
), every AS (
  SELECT task, indicator FROM lost
  UNION SELECT task, indicator FROM asked WHERE indicator <> ''
  UNION SELECT 'mcq', indicator FROM coverage
)
SELECT task, indicator,
       coalesce(sum(n) FILTER (rule = 'no-indicator-value'), 0)::BIGINT AS missing,
       any_value(if(task = 'mcq', usable, NULL)) AS usable,
       coalesce(any_value(questions), 0) AS questions,
       coalesce(
         map_from_entries(
           list((rule, n) ORDER BY rule) FILTER (rule <> 'no-indicator-value' AND n > 0)
         ),
         MAP {}
       ) AS other_rules
FROM every
  LEFT JOIN lost USING (task, indicator)
  LEFT JOIN asked USING (task, indicator)
  LEFT JOIN coverage USING (indicator)
GROUP BY task, indicator
ORDER BY task, indicator

-- name: levels
SELECT indicator, count(*) AS n,
       100 * avg((level = 'subnational')::INT) AS subnational,
       100 * avg((level = 'urban-rural')::INT) AS "urban-rural",
       100 * avg((level = 'national')::INT) AS "national",
       count(DISTINCT value) AS distinct_values,
       coalesce(min(value_year)::INT || '-' || max(value_year)::INT, '') AS value_years,
       max(abs(value_year - year))::INT AS largest_gap
FROM items_mcq
GROUP BY indicator
ORDER BY indicator

-- name: gold_distance
-- per indicator, in the order of the pillars: questions by the years between gold value and survey
SELECT indicator, count(*) AS n,
       coalesce(histogram(abs(value_year - year)::INT::VARCHAR), MAP {}) AS years_apart,
       count(*) - count(value_year - year) AS unknown
FROM items_mcq LEFT JOIN pillars USING (pillar)
GROUP BY place, indicator
ORDER BY place NULLS LAST, indicator

-- name: distinct_prompts
SELECT task, count(DISTINCT text) AS texts FROM prompts WHERE test = 'T5' GROUP BY task ORDER BY task

-- name: quarantined
SELECT rule, sum(n)::BIGINT AS n FROM quarantine GROUP BY rule ORDER BY rule

-- name: quarantined_by_table
SELECT "table", rule, sum(n)::BIGINT AS n FROM quarantine GROUP BY ALL ORDER BY ALL

-- name: sources
SELECT source, count(*) AS n FROM items_mcq GROUP BY source ORDER BY source

-- name: series
SELECT DISTINCT series, source FROM series ORDER BY ALL
