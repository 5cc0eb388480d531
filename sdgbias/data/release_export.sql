-- The records of a release (benchmark/release/export.py), from the tables of a benchmark: prompts,
-- items_mcq, items_regression, images, and records of an imported one. Table pictures (image_id,
-- photo_id, paths, cluster_id): every picture that a question shows, with the names of its files.

-- name: built-pictures
CREATE TABLE pictures AS
SELECT image_id, photo_id, cluster_id,
       CASE WHEN n_parts > 1
            THEN [format('images/{}_{}.png', image_id, k) FOR k IN range(1, n_parts + 1)]
            ELSE ['images/' || image_id || '.png'] END AS paths
FROM (SELECT image_id FROM items_mcq UNION SELECT image_id FROM items_regression)
LEFT JOIN images USING (image_id)
QUALIFY row_number() OVER (PARTITION BY image_id ORDER BY cluster_id) = 1

-- name: imported-pictures
CREATE TABLE pictures AS
SELECT DISTINCT image_id, '' AS photo_id, cluster_id, paths
FROM records
JOIN (SELECT item_id, image_id, 'mcq' AS task FROM items_mcq
      UNION ALL SELECT item_id, image_id, 'regression' FROM items_regression) USING (task, item_id)
LEFT JOIN images USING (image_id)

-- name: parts
SELECT task || '_' || test, count(*) FROM {table} GROUP BY ALL

-- name: built-records
SELECT text, item.*, photo_id,
       CASE WHEN item.item_id IS NULL THEN error('items_{task}.parquet lacks items that have prompts')
            ELSE paths END AS paths
FROM prompts LEFT JOIN items_{task} item USING (item_id) LEFT JOIN pictures
  ON pictures.image_id = item.image_id
WHERE task = '{task}' AND test = $test ORDER BY prompts.item_id

-- name: imported-records
SELECT text, record FROM records JOIN prompts USING (task, test, item_id)
WHERE task = '{task}' AND test = $test ORDER BY line
