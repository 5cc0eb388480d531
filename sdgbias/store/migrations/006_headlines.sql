-- The metric rows about all indicators or classes together, a second time: what pages over many nights ask for, in a quarter of the rows
-- (store.HEADLINES). Publishing a run writes both tables in one transaction.

CREATE TABLE headline_rows AS FROM metric_rows WHERE indicator IN ('all', 'all-52');
