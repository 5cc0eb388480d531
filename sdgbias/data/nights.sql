-- Nights (analysis/nights.py), where a missing text is '' and a missing number 0, and what
-- nightly/regression reads: runs to judge, earlier runs, answers and flips. verdicts: an unchanged
-- run in breach is shown as in the night that found it.

-- name: models
SELECT night, model, suite,
       coalesce(COLUMNS('^(outcome|run_id|kind|message|log)$'), ''),
       coalesce(COLUMNS('^(attempts|scored|planned)$'), 0),
       coalesce(seconds, 'nan') AS seconds,
       coalesce(quarantined_until, '') AS until,
       coalesce(run_id IN (SELECT run_id FROM runs WHERE provenance = 'planted'), false) AS planted,
       coalesce((SELECT last(reason) FROM accepted WHERE run_id = m.run_id), '') AS accepted
FROM night_outcomes m
WHERE night = $night
ORDER BY model, suite

-- name: verdicts
SELECT * REPLACE (coalesce(quarantines, false) AS quarantines, coalesce(baseline, '') AS baseline,
                  coalesce(required, false) AS required, coalesce(side, '') AS side)
FROM verdicts
WHERE night = $night
   OR (rule <> $unchanged AND night IN (SELECT night FROM nights) AND run_id IN (
         SELECT run_id FROM verdicts
         WHERE night = $night AND rule = $unchanged AND verdict = 'BREACH'))
ORDER BY rowid

-- name: history
SELECT m.night, m.model, m.suite, m.outcome,
       coalesce(bool_or(v.verdict = 'BREACH'), false) AS breach,
       coalesce(bool_or(v.verdict IS NOT NULL), false) AS judged
FROM night_outcomes m
LEFT JOIN verdicts v ON v.night = m.night AND v.model = m.model AND v.suite = m.suite
WHERE list_contains($nights, m.night)
GROUP BY ALL
ORDER BY m.model, m.suite, m.night

-- name: attributes
SELECT DISTINCT unnest(map_keys(attributes)) AS name FROM questions
WHERE benchmark_id = $benchmark ORDER BY name

-- name: answers
-- One row per answer. full_*, generated_correct: of the Full view to the same question.
SELECT a.task, a.test, a.method, a.item_id, hash(a.content_key) AS "key", hash(a.unit) AS cluster,
       coalesce(a.pred, '') AS pred, coalesce(a.polarity, '') AS polarity,
       CASE WHEN d.parsed THEN 'number' WHEN NOT d.parsed THEN 'unparsed' ELSE coalesce(s.how, '')
       END AS how,
       coalesce(c.top_token, '') AS top_token, coalesce(json_array_length(a.options), 0) AS n_options,
       CASE WHEN NOT a.negative
                 AND list_contains($classes || [''], coalesce(attributes['class'], ''))
            THEN a.correct::DOUBLE END AS correct,
       a."value", a."error", a.tolerance, a.kept::DOUBLE AS kept, c.mass, c.lead,
       coalesce(bool_or(a.method = 'full') OVER question, false) AS in_full,
       any_value(a.correct::DOUBLE) FILTER (WHERE a.method = 'full') OVER question AS full_correct,
       any_value(a."error") FILTER (WHERE a.method = 'full') OVER question AS full_error,
       any_value(a."value") FILTER (WHERE a.method = 'full') OVER question AS full_value,
       any_value(a.pred) FILTER (WHERE a.method = 'full') OVER question AS full_pred,
       any_value(a.correct::DOUBLE) FILTER (WHERE a.method = 'full_generated') OVER question
           AS correct_generated
       {attributes}
FROM answers a
LEFT JOIN (SELECT task, item_id, test, "view", any_value(mass) AS mass,
                  any_value(top_token) AS top_token,
                  any_value(list_reverse_sort(list_filter(logits::DOUBLE[],
                                                          lambda score: isfinite(score)))) AS best,
                  best[1] - best[2] AS lead
           FROM scores WHERE run_id = $run GROUP BY ALL) c
       ON c.task = a.task AND c.item_id = a.item_id AND c.test = a.test AND c."view" = a.method
LEFT JOIN (SELECT task, item_id, test, "view", any_value(how) AS how FROM spoken
           WHERE run_id = $run GROUP BY ALL) s
       ON s.task = a.task AND s.item_id = a.item_id AND s.test = a.test AND s."view" = a.method
LEFT JOIN (SELECT item_id, test, "view", any_value(parsed) AS parsed FROM decoded
           WHERE run_id = $run GROUP BY ALL) d
       ON a.task = 'regression' AND d.item_id = a.item_id AND d.test = a.test
          AND d."view" = a.method
WHERE a.run_id = $run{reported}
WINDOW question AS (PARTITION BY a.task, a.test, a.item_id)
QUALIFY list_contains($methods, a.method)
ORDER BY a.task, a.test, a.method, a.item_id

-- name: targets
SELECT t.*, coalesce(max(v.night), '') AS judged,
       t.run_id IN (SELECT w.run_id FROM verdicts w ANTI JOIN accepted USING (run_id)
                    WHERE verdict = 'BREACH') AS in_breach,
       coalesce((SELECT last(reason) FROM accepted WHERE run_id = t.run_id), '') AS accepted
FROM (SELECT night, model, suite, run_id FROM night_outcomes
      WHERE night = $night AND outcome IN ('published', 'unchanged')
            AND run_id IN (SELECT run_id FROM runs)
      UNION ALL
      SELECT $by_hand || run_id, model, suite, run_id FROM runs
      WHERE list_contains($runs, run_id)) t
LEFT JOIN verdicts v ON v.run_id = t.run_id AND v.night <> t.night AND v.rule <> $unchanged
          AND NOT starts_with(v.night, $by_hand)
GROUP BY ALL
ORDER BY model, suite

-- name: earlier
SELECT run_id, run_id IN (SELECT v.run_id FROM verdicts v ANTI JOIN accepted USING (run_id)
                          WHERE verdict = 'BREACH') AS in_breach
FROM runs
WHERE model = $model AND suite = $suite AND finished_at < $finished_at AND run_id <> $run_id
ORDER BY benchmark_id = $benchmark_id DESC, finished_at DESC, run_id DESC

-- name: flips
SELECT p.task, p.test, p.method, p.item_id, p.gold,
       coalesce(CASE WHEN b.task = 'regression' THEN format('{{:.1f}}', b."value") ELSE b.pred END,
                '') AS was,
       coalesce(CASE WHEN p.task = 'regression' THEN format('{{:.1f}}', p."value") ELSE p.pred END,
                '') AS now,
       p.correct AS better, coalesce(p.confidence, 0) + coalesce(b.confidence, 0) AS sure,
       row_number() OVER (
           PARTITION BY p.correct, p.item_id
           ORDER BY list_contains($breached, p.method) DESC, sure DESC, p.test, p.method DESC) AS turn
FROM answers p
JOIN answers b ON b.task = p.task AND b.item_id = p.item_id AND b.test = p.test
               AND b.method = p.method AND b.content_key = p.content_key
WHERE p.run_id = $new AND b.run_id = $old AND list_contains($methods, p.method)
      AND p.correct <> b.correct{reported}
ORDER BY better, turn, list_contains($breached, p.method) DESC, sure DESC, p.item_id, p.test, p.method DESC
LIMIT $limit
