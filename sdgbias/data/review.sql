-- Human review (benchmark/review). Table: items (key, task, item_id, pillar, indicator; cname or
-- cluster_id).

-- name: sample
-- Within task x indicator x country systematic, in the order of a hash keyed by seed and item, from
-- a random start: the sample of a stratum doesn't depend on the others.
WITH hashed AS (
  SELECT *, task || '|' || indicator AS whole, whole || '|' || cname AS stratum,
         ('0x' || md5($seed || '|review|' || key)[:15])::BIGINT AS hash,
         ('0x' || md5($seed || '|review order|' || key)[:15])::BIGINT AS sheet_order,
         ('0x' || md5($seed || '|review|' || stratum)[:15])::BIGINT / pow(16, 15) AS start
  FROM items
), placed AS (
  SELECT *, (row_number() OVER (PARTITION BY stratum ORDER BY hash, item_id) - 1 + start)
            / count(*) OVER (PARTITION BY stratum) AS place
  FROM hashed
)
SELECT key, task, pillar, indicator, item_id, cname
FROM placed
QUALIFY place < $share
     OR row_number() OVER (PARTITION BY whole ORDER BY place, hash, item_id) = 1
ORDER BY sheet_order, task, item_id

-- name: judge
-- The verdict of each item that stands in a reviewer's CSV (first, second, third: key, verdict,
-- reason, comment): the common one of the reviewers, else the adjudicator's, else NULL.
CREATE TABLE judged AS
SELECT items.*, coalesce(a.verdict, '') AS one, coalesce(b.verdict, '') AS two,
       (one <> '')::INT + (two <> '')::INT AS done,
       done = 2 AND one = two AS agreed, done = 2 AND one <> two AS disagreed,
       disagreed AND coalesce(c.verdict, '') <> '' AS decided,
       disagreed AND NOT decided AS is_open,
       CASE if(agreed, one, if(decided, c.verdict, NULL))
         WHEN 'accept' THEN 'accepted' WHEN 'reject' THEN 'rejected' END AS verdict,
       if(agreed, $one || '+' || $two, $judge) AS by,
       CASE WHEN NOT agreed THEN c.reason
         WHEN a.reason = '' OR a.reason = b.reason THEN b.reason
         WHEN b.reason = '' THEN a.reason ELSE a.reason || '+' || b.reason END AS reason,
       concat_ws(' ', $one, one, nullif('(' || a.reason || ')', '()'), nullif(a.comment, ''), '|',
                 $two, two, nullif('(' || b.reason || ')', '()'), nullif(b.comment, '')) AS said
FROM first AS a FULL JOIN second AS b USING (key) LEFT JOIN third AS c USING (key)
JOIN items USING (key)
ORDER BY task, item_id

-- name: counts
SELECT count(*) AS items, count(*) FILTER (done = 2) AS by_both,
       count(*) FILTER (done = 1) AS by_one, count(*) FILTER (done = 0) AS by_none,
       count(*) FILTER (agreed) AS agreed, count(*) FILTER (disagreed) AS disagreed,
       count(*) FILTER (decided) AS adjudicated, count(*) FILTER (is_open) AS open,
       count(*) FILTER (verdict = 'accepted') AS accepted,
       count(*) FILTER (verdict = 'rejected') AS rejected
FROM judged

-- name: reasons
-- An item can have two.
SELECT reason, count(*)
FROM (SELECT unnest(string_split(coalesce(nullif(reason, ''), 'none given'), '+')) AS reason
      FROM judged WHERE verdict = 'rejected')
GROUP BY ALL
ORDER BY ALL

-- name: open
SELECT task, key AS item_id, '' AS verdict, '' AS reason, '' AS comment,
       regexp_replace(said, '\s+', ' ', 'g') AS said
FROM judged
WHERE is_open
ORDER BY task, judged.item_id
