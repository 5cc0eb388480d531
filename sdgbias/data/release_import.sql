-- How the records of a release become questions (benchmark/release/import_.py). Tables: lines of one
-- file; records of every file, later only those that are kept; differ (per item: whether its questions
-- differ, and which other fields do); by_design (tasks whose texts differ by design); repeated (items
-- with several records in a file); faults; last (one record per item); names (what our tables know);
-- countries; places (pictures that are stored); shown (the items of both tasks); prompts.

-- name: tables
CREATE TABLE lines (number BIGINT, line VARCHAR);
CREATE TABLE records (
    task VARCHAR, test VARCHAR, number BIGINT, line VARCHAR, said VARCHAR, item_id BIGINT,
    paths VARCHAR[], question VARCHAR, bare VARCHAR, A VARCHAR, B VARCHAR, C VARCHAR, D VARCHAR,
    answer VARCHAR, split VARCHAR, pillar VARCHAR, indicator VARCHAR, target VARCHAR, cluster_id VARCHAR);
CREATE TABLE faults ("table" VARCHAR, item_id BIGINT, key VARCHAR, rule VARCHAR, detail VARCHAR);
CREATE TABLE prompts (task VARCHAR, test VARCHAR, item_id BIGINT, text VARCHAR);
CREATE MACRO name_key(name) AS
    regexp_replace(replace(lower(name), '&', 'and'), '[^\p{L}\p{N}]', '', 'g');
-- Python writes a missing value of a table as NaN, which is no JSON.
CREATE MACRO without_nan(line) AS
    regexp_replace(line, '"\s*:\s*NaN\s*([,}])', '":null\1', 'g');

-- name: lines
-- A file as its lines: chr(1) stands in no JSON text.
INSERT INTO lines
SELECT number, rtrim(line, chr(13))
FROM (SELECT row_number() OVER () AS number, line
      FROM read_csv($path, auto_detect = false, header = false, delim = chr(1), quote = '',
                    escape = '', columns = {'line': 'VARCHAR'}, strict_mode = false,
                    max_line_size = 50000000, hive_partitioning = false))
WHERE trim(coalesce(line, ''), E' \t\r') <> ''

-- name: check
-- The first line that is no object, or has a name twice, of which readers take different values.
SELECT min(number) FILTER (NOT coalesce(json_type(json) = 'OBJECT'
                                        AND len(json_keys(json)) = list_unique(json_keys(json)), false)),
       arg_min(line, number)
FROM (SELECT number, line, TRY_CAST(line AS JSON) AS json FROM lines)

-- name: parse
INSERT INTO records BY NAME
SELECT $task AS task, $test AS test, number, line, item_id AS said,
       TRY_CAST(regexp_extract(item_id, '^(-?[0-9]{1,19})(\.0+)?$', 1) AS BIGINT) AS item_id,
       list_transform(if(json_array_length(line, '$.images') > 0, line ->> '$.images[*]', [image]),
                      lambda path: coalesce(path, '')) AS paths,
       coalesce(nullif(item_question, ''), regexp_replace(regexp_replace(coalesce(question, ''),
           '(?s)\n\s*(Context:|Options:|VALID OPTIONS|STRICT OUTPUT|Answer ).*', ''),
           '^Question: ?', '')) AS bare,
       coalesce(COLUMNS(['question', 'A', 'B', 'C', 'D', 'answer', 'split', 'pillar', 'indicator',
                         'target', 'cluster_id']), '')
FROM (SELECT number, line, unnest(from_json(without_nan(line), '{"item_id": "VARCHAR", "image": "VARCHAR",
          "question": "VARCHAR", "A": "VARCHAR", "B": "VARCHAR", "C": "VARCHAR", "D": "VARCHAR",
          "answer": "VARCHAR", "split": "VARCHAR", "pillar": "VARCHAR", "indicator": "VARCHAR", "target": "VARCHAR",
          "cluster_id": "VARCHAR", "item_question": "VARCHAR"}')) FROM lines)

-- name: kinds
-- Per file, whether its questions are complete (with options or instruction) or have contexts.
SELECT task || '_' || test AS name, count(*) AS records,
       CASE WHEN avg(CASE task
           WHEN 'mcq' THEN regexp_matches(question, '(?m)^\s*(?:Options:|VALID OPTIONS)')
           ELSE regexp_matches(question, '(?m)^\s*(?:Answer |STRICT OUTPUT)') END::INT) >= 0.5
       THEN 'complete'
       WHEN bool_or(regexp_matches(question, '(?m)^\s*Context:')) THEN 'with context'
       ELSE 'bare' END AS kind
FROM records GROUP BY task, test

-- name: differ
CREATE TABLE differ AS
SELECT task, item_id, min(bare) <> max(bare) AS asked,
       concat_ws(', ', if(min(paths) <> max(paths), 'image', NULL),
           if(min(A) <> max(A), 'A', NULL), if(min(B) <> max(B), 'B', NULL),
           if(min(C) <> max(C), 'C', NULL), if(min(answer) <> max(answer), 'answer', NULL),
           if(min(split) <> max(split), 'split', NULL),
           if(min(pillar) <> max(pillar), 'pillar', NULL),
           if(min(indicator) <> max(indicator), 'indicator', NULL),
           if(min(target) <> max(target), 'target', NULL),
           if(min(cluster_id) <> max(cluster_id), 'cluster_id', NULL)) AS what
FROM records WHERE item_id IS NOT NULL GROUP BY task, item_id;
CREATE TABLE by_design AS  -- where most texts differ, they differ by design
SELECT task FROM differ GROUP BY task HAVING avg(asked::INT) > 0.5 ORDER BY task;
CREATE TABLE repeated AS
SELECT task, test, item_id, count(*) AS n, min(number) AS first, min(line) <> max(line) AS conflict
FROM records
SEMI JOIN (SELECT task, test, item_id FROM records WHERE item_id IS NOT NULL
           GROUP BY ALL HAVING count(*) > 1) USING (task, test, item_id)
GROUP BY task, test, item_id

-- name: faults
-- What can be wrong with a record, by rule; a broken item leaves all its files.
INSERT INTO faults
SELECT DISTINCT 'items_' || task, item_id, item_id::VARCHAR, fault.rule, fault.detail
FROM (SELECT task, item_id, unnest([
        {'rule': 'no-question', 'detail': 'question is missing', 'broken': trim(question) = ''},
        {'rule': 'invalid-options', 'detail': 'A, B, C: ' || concat_ws(' | ', A, B, C, nullif(D, '')),
         'broken': task = 'mcq' AND (A = '' OR B = '' OR A = B OR A = C OR B = C OR D <> '')},
        {'rule': 'answer-not-an-option', 'detail': 'answer ' || answer,
         'broken': task = 'mcq'
            AND CASE upper(answer) WHEN 'A' THEN A WHEN 'B' THEN B WHEN 'C' THEN C ELSE '' END = ''},
        {'rule': 'answer-not-a-number', 'detail': 'answer ' || answer,
         'broken': task = 'regression' AND NOT coalesce(isfinite(TRY_CAST(answer AS DOUBLE)), false)},
        {'rule': 'invalid-split', 'detail': 'split ' || split || '; valid: val, test',
         'broken': lower(split) NOT IN ('', 'val', 'test')}]) AS fault
      FROM records WHERE item_id IS NOT NULL)
WHERE fault.broken
UNION ALL
SELECT 'items_' || task, NULL, task || '_' || test || ' line ' || number, 'no-item-id',
       'item_id ' || coalesce(said, 'missing') || ' is no integer'
FROM records WHERE item_id IS NULL
UNION ALL
SELECT 'items_' || task, item_id, item_id::VARCHAR,
       CASE WHEN conflict THEN 'conflicting-records' ELSE 'duplicate-record' END,
       task || '_' || test || ': ' || n || ' records'
FROM repeated
UNION ALL
SELECT 'items_' || task, item_id, item_id::VARCHAR, 'inconsistent-item',
       'differs between files: '
         || concat_ws(', ', CASE WHEN compared AND asked THEN 'question' END, nullif(what, ''))
FROM (SELECT *, task NOT IN (FROM by_design) AS compared FROM differ)
WHERE compared AND asked OR what <> ''
UNION ALL
SELECT 'items_' || task, item_id, item_id::VARCHAR, 'incomplete-item',
       'in ' || count(DISTINCT test) || ' of ' || any_value(n) || ' files'
FROM records JOIN (SELECT task, count(DISTINCT test) AS n FROM records GROUP BY task) USING (task)
WHERE item_id IS NOT NULL
GROUP BY task, item_id
HAVING count(DISTINCT test) < any_value(n)

-- name: keep
DELETE FROM records
WHERE item_id IS NULL
   OR (task, item_id) IN (SELECT substr("table", 7), item_id FROM faults
                          WHERE rule <> 'duplicate-record' AND item_id IS NOT NULL)
   OR (task, test, item_id) IN (SELECT task, test, item_id FROM repeated)
      AND (task, test, number) NOT IN (SELECT task, test, first FROM repeated);
CREATE VIEW last AS  -- under the last test a question has the least context
SELECT * FROM records WHERE (task, test) IN (SELECT task, max(test) FROM records GROUP BY task)

-- name: pictures
-- A picture is a place: the cluster id of its records where no other picture has it, else its path
-- without images/ and suffix, else as it is.
WITH shown AS (
    SELECT paths, array_to_string(paths, chr(31)) AS key,
           coalesce(line ->> '$.cluster_id', '') AS named,
           coalesce(line ->> '$.photo_id', '') AS photo_id,
           coalesce(line ->> '$.modalities', '') AS modalities,
           regexp_replace(regexp_replace(paths[1], '([^/])\.[^./]+$', '\1'), '^images/', '') AS short
    FROM last
    QUALIFY row_number() OVER (PARTITION BY paths ORDER BY task, item_id) = 1
), placed AS (
    SELECT *, CASE WHEN named <> '' AND count(*) OVER (PARTITION BY named) = 1 THEN named
                   WHEN short <> '' AND count(*) OVER (PARTITION BY short) = 1 THEN short
                   ELSE paths[1] END AS place
    FROM shown
)
SELECT * REPLACE (CASE WHEN count(*) OVER (PARTITION BY place) = 1 THEN place ELSE key END AS place)
FROM placed
ORDER BY place

-- name: broken
INSERT INTO faults
SELECT 'items_' || task, item_id, item_id::VARCHAR, coalesce(rule, 'broken-image'),
       coalesce(detail, array_to_string(paths, ', ') || ' is no readable PNG or JPEG of at most '
                        || $most || ' pixels')
FROM (SELECT *, array_to_string(paths, chr(31)) AS key FROM last)
ANTI JOIN places USING (key) LEFT JOIN broken USING (key)

-- name: names
-- A name may be a slug, a title, or an SDG code that stands for one entry alone.
CREATE TABLE names AS
SELECT *, name_key(name) AS key
FROM (SELECT *, unnest([slug, title, CASE WHEN n = 1 AND kind <> 'target' THEN sdg ELSE '' END]) AS name,
             unnest([1, 2, 3]) AS rank
      FROM (SELECT *, count(*) OVER (PARTITION BY kind, sdg) AS n FROM listed))
WHERE name <> ''
QUALIFY row_number() OVER (PARTITION BY kind, key ORDER BY rank, position) = 1

-- name: items
-- Fields that a record lacks are filled from our tables, or left blank.
WITH given AS (
    SELECT item_id, image_id, place, bare,
           unnest(from_json(without_nan(line), $fields)),
           regexp_full_match(place, $dhs_id) AS has_dhs_id
    FROM (SELECT * FROM last WHERE task = $task)
    JOIN (SELECT key, cluster_id AS place, image_id FROM places)
    ON key = array_to_string(paths, chr(31))
), named AS (
    SELECT given.*, coalesce(nullif(given.indicator, ''), given.task_name, '') AS named,
           coalesce(nullif(given.cname, ''), code.cname, '') AS country_code
    FROM given LEFT JOIN countries code ON has_dhs_id AND code.cname = left(place, 2)
), matched AS (
    SELECT named.*,
           CASE WHEN one.key IS NULL THEN two ELSE one END AS ours,
           pillars.name AS pillar_name, targets.target AS target_name
    FROM named
    LEFT JOIN names one ON one.kind = $task AND one.key = name_key(named)
    LEFT JOIN names two ON two.kind = $task AND two.key = name_key(named.task_name)
    LEFT JOIN names pillars ON pillars.kind = 'pillar' AND pillars.key = name_key(named.pillar)
    LEFT JOIN names targets ON targets.kind = 'target' AND targets.key = name_key(named.target)
)
SELECT m.* REPLACE (
           place AS cluster_id, country_code AS cname,
           coalesce(nullif(m.iso3, ''), countries.iso3) AS iso3,
           coalesce(nullif(m.country, ''), countries.name) AS country,
           coalesce(m.year, CASE WHEN has_dhs_id THEN substr(place, 4, 4)::INTEGER END) AS year,
           coalesce(nullif(item_question, ''), bare) AS item_question,
           coalesce(ours.slug, named) AS indicator,
           CASE WHEN coalesce(item_question, '') <> '' THEN m.task_name
                ELSE coalesce(ours.title, named) END AS task_name,
           coalesce(nullif(m.unit, ''), ours.unit) AS unit,
           coalesce(nullif(m.sdg, ''), ours.sdg) AS sdg,
           CASE WHEN m.polarity IN ('higher', 'lower') THEN m.polarity ELSE ours.polarity END
             AS polarity,
           coalesce(pillar_name, nullif(m.pillar, ''), ours.pillar) AS pillar,
           coalesce(target_name, nullif(ours.target, ''), m.target) AS target,
           CASE lower(m.urban) WHEN 'urban' THEN 'U' WHEN 'rural' THEN 'R' ELSE m.urban END AS urban,
           lower(m.split) AS split),
       CASE WHEN ours.slug IS NULL THEN named END AS not_ours
FROM matched m LEFT JOIN countries ON countries.cname = country_code
ORDER BY item_id

-- name: shown
CREATE TABLE shown AS
SELECT *, CASE WHEN task = 'regression' THEN '0123456789' WHEN option_c = '' THEN 'AB' ELSE 'ABC' END
       AS candidates
FROM (SELECT 'mcq' AS task, * FROM items_mcq
      UNION ALL BY NAME SELECT 'regression' AS task, * FROM items_regression)

-- name: clusters
-- The places as far as the items contain them; coordinates and region codes are unknown.
SELECT cluster_id, cname, iso3, country,
       CASE WHEN regexp_full_match(cluster_id, $dhs_id) THEN left(cluster_id, 10) ELSE '' END AS survey,
       year, NULL::DOUBLE AS lat, NULL::DOUBLE AS lon, urban, $unknown::INTEGER AS adm1dhs,
       coalesce(official_split, '') AS official_split,
       asset_index, water_index, sanitation_index, under5_mort, women_edu, women_bmi
FROM (SELECT cluster_id, any_value(COLUMNS([
                 'cname', 'iso3', 'country', 'year', 'urban', 'asset_index', 'water_index',
                 'sanitation_index', 'under5_mort', 'women_edu', 'women_bmi']) ORDER BY task, item_id)
      FROM shown GROUP BY cluster_id)
LEFT JOIN (SELECT cname, official_split FROM countries) USING (cname)
ORDER BY cluster_id

-- name: questions
-- Of a file: complete, or to be completed; without the context where they are of another test.
SELECT CASE WHEN $kind = 'complete' AND test <> $test
            THEN regexp_replace(question, '(?m)^Context:.*\n?', '')
            WHEN $kind = 'complete' THEN question WHEN test <> $test THEN bare
            ELSE regexp_replace(question, '^Question: ?', '') END AS question
FROM records SEMI JOIN shown USING (task, item_id)
WHERE task = $task AND test = $source ORDER BY item_id

-- name: prompts
SELECT p.task, item_id, test, text, image_id, candidates {blank} FROM prompts p
JOIN shown USING (task, item_id) ORDER BY p.task, item_id, test

-- name: records
SELECT task, test, number AS line, item_id, paths, line AS record FROM records
SEMI JOIN shown USING (task, item_id) ORDER BY task, test, number
