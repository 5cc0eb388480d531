-- How the records of a release become questions (benchmark/release/import_.py). Tables: lines
-- (number, line) of one file; records (of every file, the fields that are compared; later only those
-- that are kept); differ (per item: whether its questions differ, and which other fields do);
-- by_design (tasks whose texts differ by design); repeated (items with several records in a file);
-- files (task, n); faults (tbl, item_id, key, rule, detail: release_faults.sql); last (one record per
-- item); names (kind, name, key and what it means), countries (of our own tables); places (key: the
-- paths, cluster_id, image_id); prompts; shown (task, item_id, image_id, candidates).

-- name: tables
CREATE TABLE lines (number BIGINT, line VARCHAR);
CREATE TABLE records (
    task VARCHAR, test VARCHAR, number BIGINT, line VARCHAR, said VARCHAR, item_id BIGINT,
    paths VARCHAR[], question VARCHAR, bare VARCHAR, A VARCHAR, B VARCHAR, C VARCHAR, answer VARCHAR,
    split VARCHAR, pillar VARCHAR, indicator VARCHAR, target VARCHAR, cluster_id VARCHAR);
CREATE TABLE faults (tbl VARCHAR, item_id BIGINT, key VARCHAR, rule VARCHAR, detail VARCHAR);
CREATE TABLE prompts (task VARCHAR, test VARCHAR, item_id BIGINT, text VARCHAR);
CREATE MACRO name_key(name) AS
    regexp_replace(replace(lower(name), '&', 'and'), '[^\p{L}\p{N}]', '', 'g');

-- name: lines
-- A file as its lines: chr(1) stands in no JSON text.
INSERT INTO lines
SELECT number, rtrim(line, chr(13))
FROM (SELECT row_number() OVER () AS number, line
      FROM read_csv($path, auto_detect = false, header = false, delim = chr(1), quote = '',
                    escape = '', columns = {'line': 'VARCHAR'}, strict_mode = false,
                    max_line_size = 50000000))
WHERE trim(coalesce(line, ''), E' \t\r') <> ''

-- name: damaged
SELECT min(number) FROM lines
WHERE NOT coalesce(json_type(TRY_CAST(line AS JSON)) = 'OBJECT', false)

-- name: parse
INSERT INTO records
SELECT $task, $test, number, line, said,
       TRY_CAST(regexp_extract(said, '^(-?[0-9]{1,19})(\.0+)?$', 1) AS BIGINT),
       list_transform(
           CASE json_type(line, '$.images') WHEN 'ARRAY' THEN line ->> '$.images[*]'
           ELSE [f[3]] END, lambda path: coalesce(path, '')),
       coalesce(f[2], ''),
       coalesce(nullif(f[14], ''), regexp_replace(regexp_replace(coalesce(f[2], ''),
           '(?s)\n\s*(Context:|Options:|VALID OPTIONS|STRICT OUTPUT|Answer ).*', ''),
           '^Question: ?', '')),
       coalesce(f[4], ''), coalesce(f[5], ''), coalesce(f[6], ''), coalesce(f[7], ''),
       coalesce(f[8], ''), coalesce(f[9], ''), coalesce(f[10], ''), coalesce(f[11], ''),
       coalesce(f[12], '')
FROM (SELECT number, line, f, f[1] AS said FROM (
    SELECT number, line, json_extract_string(line, [
        '$.item_id', '$.question', '$.image', '$.A', '$.B', '$.C', '$.answer', '$.split',
        '$.pillar', '$.indicator', '$.target', '$.cluster_id', '$.id', '$.item_question']) AS f
    FROM lines))

-- name: kinds
-- Per file, whether its questions are complete (with options or instruction) or have contexts.
SELECT task, test, count(*) AS records,
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
       concat_ws(', ', CASE WHEN min(paths) <> max(paths) THEN 'image' END,
           CASE WHEN min(A) <> max(A) THEN 'A' END, CASE WHEN min(B) <> max(B) THEN 'B' END,
           CASE WHEN min(C) <> max(C) THEN 'C' END,
           CASE WHEN min(answer) <> max(answer) THEN 'answer' END,
           CASE WHEN min(split) <> max(split) THEN 'split' END,
           CASE WHEN min(pillar) <> max(pillar) THEN 'pillar' END,
           CASE WHEN min(indicator) <> max(indicator) THEN 'indicator' END,
           CASE WHEN min(target) <> max(target) THEN 'target' END,
           CASE WHEN min(cluster_id) <> max(cluster_id) THEN 'cluster_id' END) AS what
FROM records WHERE item_id IS NOT NULL GROUP BY task, item_id;
CREATE TABLE by_design AS  -- where most texts differ, they differ by design
SELECT task FROM differ GROUP BY task HAVING avg(asked::INT) > 0.5 ORDER BY task;
CREATE TABLE repeated AS
SELECT task, test, item_id, count(*) AS n, min(number) AS first, min(line) <> max(line) AS conflict
FROM records
SEMI JOIN (SELECT task, test, item_id FROM records WHERE item_id IS NOT NULL
           GROUP BY ALL HAVING count(*) > 1) USING (task, test, item_id)
GROUP BY task, test, item_id;
CREATE TABLE files AS SELECT task, count(DISTINCT test) AS n FROM records GROUP BY task

-- name: keep
DELETE FROM records
WHERE item_id IS NULL
   OR (task, item_id) IN (SELECT substr(tbl, 7), item_id FROM faults
                          WHERE rule <> 'duplicate-record' AND item_id IS NOT NULL)
   OR (task, test, item_id) IN (SELECT task, test, item_id FROM repeated)
      AND number NOT IN (SELECT first FROM repeated r WHERE r.task = records.task
                         AND r.test = records.test AND r.item_id = records.item_id);
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
SELECT 'items_' || task, item_id, item_id::VARCHAR, rule, detail
FROM last JOIN broken ON broken.key = array_to_string(last.paths, chr(31))

-- name: names
CREATE TABLE names AS
SELECT *, name_key(name) AS key FROM listed WHERE name <> ''
QUALIFY row_number() OVER (PARTITION BY kind, key ORDER BY rank) = 1

-- name: items
-- Fields that a record lacks are filled from our tables, or left blank.
WITH given AS (
    SELECT item_id, image_id, place, bare,
           unnest(from_json(line, $fields)),
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
           coalesce(nullif(m.polarity, ''), ours.polarity) AS polarity,
           coalesce(pillar_name, nullif(m.pillar, ''), ours.pillar) AS pillar,
           coalesce(target_name, nullif(ours.target, ''), m.target) AS target,
           lower(m.split) AS split),
       CASE WHEN ours.slug IS NULL THEN named END AS not_ours
FROM matched m LEFT JOIN countries ON countries.cname = country_code
ORDER BY item_id

-- name: questions
SELECT item_id, regexp_replace(question, '^Question: ?', '') AS question FROM records
WHERE task = $task AND test = $of_file

-- name: prompts-complete
INSERT INTO prompts
SELECT task, $test, item_id,
       CASE WHEN $bare THEN regexp_replace(question, '(?m)^Context:.*\n?', '') ELSE question END
FROM records WHERE task = $task AND test = $of_file

-- name: prompts-completed
INSERT INTO prompts SELECT $task, $test, item_id, text FROM texts

-- name: prompts
SELECT p.task, item_id, test, text, image_id, candidates FROM prompts p
JOIN shown USING (task, item_id) ORDER BY p.task, item_id, test

-- name: records
SELECT task, test, number AS line, item_id, paths, line AS record FROM records
SEMI JOIN shown USING (task, item_id) ORDER BY task, test, number
