-- Nights (analysis/nights.py), where a missing text is '' and a missing number 0, and the answers
-- that nightly/regression compares. verdicts: an unchanged run in breach is shown as in the night
-- that found it.

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
   OR (rule <> $unchanged AND run_id IN (
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
SELECT a.task, a.test, a.method, a.item_id, a.pred, a."value", a.correct, a."error", a.kept, a.tolerance, a.polarity,
       json_array_length(a.options) AS n_options, hash(a.content_key) AS "key",
       hash(a.unit) AS cluster, c.mass, c.top_token, c.lead, s.how, d.parsed,
       NOT a.negative
           AND list_contains($classes || [''], coalesce(attributes['class'], '')) AS counted
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
ORDER BY a.task, a.test, a.method, a.item_id
