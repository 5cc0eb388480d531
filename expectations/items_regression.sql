-- Rules of items_regression.parquet that span columns, rows or tables, beside those of items.sql
-- (CONTRIBUTING.md).

CREATE MACRO task() AS ('regression');

-- indicator-uniform (gate): an indicator has one title, one SDG code, one pillar, one unit, one
-- question and one target
indicator NOT IN (
  SELECT indicator FROM rows GROUP BY indicator
  HAVING greatest(count(DISTINCT pillar), count(DISTINCT target), count(DISTINCT unit),
    count(DISTINCT question), count(DISTINCT indicator_title), count(DISTINCT sdg)) > 1
);

-- split-by-place (gate, needs split place): no country may be on both sides of split when the split
-- is by place
cname NOT IN (
  SELECT cname FROM (SELECT cname, split FROM rows UNION SELECT cname, split FROM items_mcq)
  GROUP BY cname HAVING count(*) > 1
);

-- split-place-across-tasks (gate, needs items_mcq): a country must be on the same side of
-- split_place in both tasks
cname NOT IN (
  SELECT cname FROM (SELECT cname, split_place FROM rows UNION SELECT cname, split_place FROM items_mcq)
  GROUP BY cname HAVING count(*) > 1
);

-- tolerance-of-target (gate, needs own build): tolerance must be Table F's for the target
(target, tolerance) IN (SELECT target, tolerance FROM tolerances);

-- answer-is-label (gate, needs own build): the gold answer must be the cluster's value of the
-- target
answer IS NULL OR target NOT IN (SELECT target
  FROM tolerances) OR abs(answer - CASE target WHEN 'asset_index' THEN asset_index WHEN
    'water_index' THEN water_index WHEN 'sanitation_index' THEN sanitation_index WHEN 'under5_mort'
    THEN under5_mort WHEN 'women_edu' THEN women_edu WHEN 'women_bmi' THEN women_bmi END) <= 0.05 +
  1e-9;
