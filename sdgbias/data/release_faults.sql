-- What can be wrong with the records of a release (benchmark/release/import_.py), by rule: task,
-- item_id, key, detail. The tables are those of release_import.sql.

-- name: no-item-id
SELECT task, NULL::BIGINT AS item_id, task || '_' || test || ' line ' || number AS key,
       'item_id ' || coalesce(said, 'missing') || ' is no integer' AS detail
FROM records
WHERE item_id IS NULL

-- name: duplicate-record
SELECT task, item_id, item_id::VARCHAR AS key,
       task || '_' || test || ': ' || n || ' records' AS detail
FROM repeated
WHERE NOT conflict

-- name: conflicting-records
SELECT task, item_id, item_id::VARCHAR AS key,
       task || '_' || test || ': ' || n || ' records' AS detail
FROM repeated
WHERE conflict

-- name: inconsistent-item
SELECT task, item_id, item_id::VARCHAR AS key,
       'differs between files: '
         || concat_ws(', ', CASE WHEN compared AND asked THEN 'question' END, nullif(what, ''))
         AS detail
FROM (SELECT *, task NOT IN (FROM by_design) AS compared FROM differ)
WHERE compared AND asked OR what <> ''

-- name: incomplete-item
SELECT task, item_id, item_id::VARCHAR AS key,
       'in ' || count(DISTINCT test) || ' of ' || any_value(n) || ' files' AS detail
FROM records JOIN files USING (task)
WHERE item_id IS NOT NULL
GROUP BY task, item_id
HAVING count(DISTINCT test) < any_value(n)

-- name: invalid-options
SELECT DISTINCT task, item_id, item_id::VARCHAR AS key,
       'A, B, C: ' || concat_ws(' | ', A, B, C) AS detail
FROM records
WHERE item_id IS NOT NULL AND task = 'mcq' AND (A = '' OR B = '' OR A = B OR A = C OR B = C)

-- name: answer-not-an-option
SELECT DISTINCT task, item_id, item_id::VARCHAR AS key, 'answer ' || answer AS detail
FROM records
WHERE item_id IS NOT NULL AND task = 'mcq'
  AND CASE upper(answer) WHEN 'A' THEN A WHEN 'B' THEN B WHEN 'C' THEN C ELSE '' END = ''

-- name: answer-not-a-number
SELECT DISTINCT task, item_id, item_id::VARCHAR AS key, 'answer ' || answer AS detail
FROM records
WHERE item_id IS NOT NULL AND task = 'regression'
  AND NOT coalesce(isfinite(TRY_CAST(answer AS DOUBLE)), false)

-- name: invalid-split
SELECT DISTINCT task, item_id, item_id::VARCHAR AS key,
       'split ' || split || '; valid: val, test' AS detail
FROM records
WHERE item_id IS NOT NULL AND lower(split) NOT IN ('', 'val', 'test')
