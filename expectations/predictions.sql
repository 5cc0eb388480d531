-- Rules of predictions.parquet that span columns, rows or tables (CONTRIBUTING.md).

-- prediction-test-of-task (gate): multiple choice is asked under T1 to T5, regression under T2 and
-- T5
(task, test) IN (SELECT task, test FROM tests);

-- pred-known (gate): pred is a letter, or a digit or empty for regression
CASE WHEN task = 'mcq' THEN pred IN (SELECT letter
  FROM choice_letters) OR (pred = '' AND suffix(method, '_generated')) ELSE length(pred) <= 1 AND
  contains('0123456789', pred) END;

-- value-fits-task (gate): regression has a finite value and an error, multiple choice neither
if(task = 'mcq', value IS NULL AND error IS NULL, isfinite(value) AND error >= 0);

-- kept-only-by-cade (gate): only CADE's confidence gate can let go of an answer
method = 'cade' OR kept;

-- prediction-item-exists (gate, needs items_mcq, items_regression): the prediction's item must be
-- in the item table of its task
(task, item_id) IN (SELECT task, item_id FROM facts);

-- prediction-split-of-item (gate, needs items_mcq, items_regression): split must be the item's
NOT EXISTS (FROM facts f WHERE f.task = r.task AND f.item_id = r.item_id AND NOT coalesce(r.split =
      f.split, false));

-- pred-among-options (gate, needs items_mcq, items_regression): pred must be an option that the
-- item has
NOT EXISTS (FROM facts f WHERE f.task = r.task AND f.item_id = r.item_id AND NOT coalesce(r.task <>
      'mcq' OR contains(f.letters, r.pred) OR r.pred NOT IN (SELECT letter
      FROM choice_letters), false));

-- error-of-value (gate, needs items_mcq, items_regression): error must be the distance of the value
-- from the gold answer
NOT EXISTS (FROM facts f WHERE f.task = r.task AND f.item_id = r.item_id AND NOT coalesce(r.task =
      'mcq' OR abs(r.error - abs(r.value - f.number)) <= 1e-6, false));

-- correct-of-pred (gate, needs items_mcq, items_regression): correct must follow from pred and gold
-- letter, or from error and tolerance
NOT EXISTS (
  FROM facts f
  WHERE f.task = r.task AND f.item_id = r.item_id AND NOT coalesce(
    coalesce(r.correct, false) = if(r.task = 'mcq', r.pred = f.gold,
      coalesce(abs(r.value - f.number) <= f.tolerance + 1e-9, false))
    OR (r.task <> 'mcq' AND abs(abs(r.value - f.number) - f.tolerance) <= 1e-6), false)
);

-- predictions-complete (warn, needs items_mcq, items_regression): a method has answers to all items
-- of its task and test
(task, test, method) IN (SELECT task, test, method
  FROM (SELECT task, test, method, count(DISTINCT item_id) AS n
    FROM rows GROUP BY ALL) JOIN (SELECT task, count(*) AS items
    FROM facts GROUP BY task) USING (task)
  WHERE n >= items);
