-- Rules of items_mcq.parquet that span columns, rows or tables, beside those of items.sql
-- (CONTRIBUTING.md).

CREATE MACRO task() AS ('mcq');

CREATE MACRO plain(text) AS (lower(trim(text)));

CREATE TEMP TABLE option_sets AS
  SELECT *,
    (plain(option_a) <> plain(option_b) OR plain(option_a) = '')
    AND (plain(option_c) = '' OR plain(option_c) NOT IN (plain(option_a), plain(option_b)))
      AS alone,
    bins_ascend([option_a, option_b, option_c]) AS ascending,
    bins_cover([option_a, option_b, option_c], unit) AS covering
  FROM (SELECT DISTINCT option_a, option_b, option_c, unit FROM rows);

CREATE TEMP TABLE option_ranges AS
  SELECT text, option_range(text) AS span
  FROM (SELECT DISTINCT unnest([option_a, option_b, option_c]) AS text FROM rows);

CREATE TEMP TABLE units AS
  SELECT unit, unit_range(unit) AS span FROM (SELECT DISTINCT unit FROM rows);

-- SDGBiasBench, Table B (percent of A, B, C)
CREATE TEMP TABLE label_shares AS FROM (VALUES
    ('Health & Nutrition', 27.75, 42.8, 29.45),
    ('Basic Services & Infrastructure', 40.11, 39.11, 20.78),
    ('Human Capital & Development', 32.03, 33.87, 34.11)
) AS t(pillar, A, B, C);

CREATE TEMP TABLE gaps AS
  SELECT pillar, greatest(
    abs(100 * avg((answer = 'A')::INT) - any_value(s.A)),
    abs(100 * avg((answer = 'B')::INT) - any_value(s.B)),
    abs(100 * avg((answer = 'C')::INT) - any_value(s.C))) AS gap
  FROM rows JOIN label_shares s USING (pillar)
  WHERE answer <> ''
  GROUP BY pillar;

-- indicator-uniform (gate, needs own build): an indicator has one title, one SDG code, one pillar,
-- one unit, one question and one set of options
indicator NOT IN (
  SELECT indicator FROM rows GROUP BY indicator
  HAVING greatest(count(DISTINCT pillar), count(DISTINCT polarity), count(DISTINCT unit),
    count(DISTINCT question), count(DISTINCT option_a), count(DISTINCT option_b),
    count(DISTINCT option_c), count(DISTINCT indicator_title), count(DISTINCT sdg)) > 1
);

-- split-by-place (gate, needs split place): no country may be on both sides of split when the split
-- is by place
cname NOT IN (
  SELECT cname FROM (SELECT cname, split FROM rows UNION SELECT cname, split FROM items_regression)
  GROUP BY cname HAVING count(*) > 1
);

-- split-place-across-tasks (gate, needs items_regression): a country must be on the same side of
-- split_place in both tasks
cname NOT IN (
  SELECT cname FROM (SELECT cname, split_place FROM rows UNION SELECT cname, split_place FROM items_regression)
  GROUP BY cname HAVING count(*) > 1
);

-- options-present (quarantine): an item needs options A and B
regexp_matches(option_a, '\S') AND regexp_matches(option_b, '\S');

-- options-distinct (quarantine): the options of an item must differ
(option_a, option_b, option_c, unit) IN (SELECT option_a, option_b, option_c, unit
  FROM option_sets WHERE alone);

-- answer-among-options (quarantine): the answer must be the letter of a present option
regexp_matches(
  CASE answer WHEN 'A' THEN option_a WHEN 'B' THEN option_b WHEN 'C' THEN option_c ELSE '' END,
  '\S');

-- bins-ordered (quarantine): options must be ranges in ascending order, A lowest
(option_a, option_b, option_c, unit) IN (SELECT option_a, option_b, option_c, unit
  FROM option_sets WHERE ascending);

-- bins-cover (quarantine): options must touch without overlap or gap and leave no end of the scale
-- uncovered
(option_a, option_b, option_c, unit) IN (SELECT option_a, option_b, option_c, unit
  FROM option_sets WHERE covering);

-- gold-in-option (quarantine): the value must lie in the range of the gold option
NOT EXISTS (
  FROM option_ranges o
  WHERE o.text = CASE answer
      WHEN 'A' THEN option_a WHEN 'B' THEN option_b WHEN 'C' THEN option_c ELSE '' END
    AND NOT (
      (r.value > o.span.low OR (r.value = o.span.low AND o.span.low_in))
      AND (r.value < o.span.high OR (r.value = o.span.high AND o.span.high_in))
    )
);

-- answers-follow-values (gate): among items with the same options no lower letter holds a higher
-- value
(indicator, option_a, option_b, option_c) NOT IN (SELECT indicator, option_a, option_b, option_c
  FROM rows GROUP BY ALL HAVING coalesce(max(value) FILTER (answer = 'A') > least(min(value) FILTER
        (answer = 'B'), min(value) FILTER (answer = 'C')), false) OR coalesce(max(value) FILTER
      (answer = 'B') > min(value) FILTER (answer = 'C'), false));

-- value-in-unit-range (quarantine): the gold value must lie in the range that its unit states
-- (percentages 0 to 100)
NOT EXISTS (FROM units u WHERE u.unit = r.unit AND r.value NOT BETWEEN u.span.low AND u.span.high);

-- value-from-series (gate, needs series, own build): value, year and source must stand in
-- series.parquet for the item's country and level
value IS NULL OR (iso3, value_year, value, source, CASE WHEN level <> 'urban-rural' THEN level
    WHEN urban = 'U' THEN 'urban' ELSE 'rural' END) IN (SELECT iso3, year, value, source,
    CASE WHEN region <> '' THEN 'subnational' WHEN stratum = 'all' THEN 'national' ELSE stratum END
  FROM series);

-- value-year-whole (quarantine): value_year must be a whole number
TRY_CAST(value_year AS DOUBLE) % 1 = 0;

-- value-year-near (warn): the gold value is at most 15 years from the survey
abs(value_year - year) <= 15;

-- label-shares (warn): the answers of a pillar are within 25 percentage points of their shares in
-- Table B (closer is no aim, because most indicators are cut at terciles of this benchmark's
-- clusters); else look at the indicator's bins
NOT EXISTS (FROM gaps g WHERE g.pillar = r.pillar AND g.gap > 25);
