-- Rules of prompts.parquet that span columns, rows or tables (CONTRIBUTING.md).

-- The value that a Context line gives for a name, '' without.
CREATE MACRO stated(line, name) AS
  regexp_extract(line, '(?:^Given: |, )' || name || '=([^,]*)', 1);

CREATE MACRO agrees(text, label, wanted) AS
  if(text = '', NOT wanted, wanted AND abs(TRY_CAST(text AS DOUBLE) - label) <= 0.05 + 1e-9);

-- The Context line of each prompt ('' without), and the text without it.
CREATE VIEW parsed AS
  SELECT row_no, task, item_id, test, image_id, candidates,
    if(shows, lines[2][10:], '') AS line,
    if(shows, lines[1] || chr(10) || array_to_string(lines[3:], chr(10)), text) AS rest
  FROM (
    SELECT *, string_split(text, chr(10)) AS lines,
      starts_with(coalesce(lines[2], ''), 'Context: ') AS shows
    FROM rows
  );

-- The parts of every distinct text without its context.
CREATE TEMP TABLE forms AS
  SELECT rest,
    regexp_extract(rest, '^Question: ([^\n]*)', 1) AS question,
    regexp_extract(rest, '(?m)^Options: (.*)$', 1) AS options,
    replace(regexp_extract(rest, '(?m)^VALID OPTIONS: (.*)$', 1), ', ', '') AS letters,
    regexp_matches(rest, '^Question: [^\n]{10,}\n(?:Options: [^\n]+\n)?'
      || '(?:VALID OPTIONS: [A-C, ]+\nSTRICT OUTPUT: (?s:.+)'
      || '|Answer strictly with a single numerical value\..*)\z') AS complete
  FROM (SELECT DISTINCT rest FROM parsed);

-- Items whose tests don't all ask the same: what T5 asks.
CREATE TEMP TABLE bare AS
  SELECT task, item_id, first(rest ORDER BY row_no) AS rest
  FROM parsed
  WHERE test = 'T5' AND (task, item_id) IN (
    SELECT task, item_id FROM parsed GROUP BY ALL HAVING min(hash(rest)) <> max(hash(rest))
  )
  GROUP BY ALL;

CREATE VIEW prompt_items AS
  SELECT 'mcq' AS task, item_id, image_id, question, urban, asset_index, water_index,
    sanitation_index, under5_mort, women_edu, women_bmi, '' AS target,
    concat_ws('; ', 'A. ' || nullif(option_a, ''), 'B. ' || nullif(option_b, ''),
      'C. ' || nullif(option_c, '')) AS options,
    if(option_c = '', 'AB', 'ABC') AS candidates
  FROM items_mcq
  UNION ALL
  SELECT 'regression', item_id, image_id, question, urban, asset_index, water_index,
    sanitation_index, under5_mort, women_edu, women_bmi, target, '', '0123456789'
  FROM items_regression;

-- Every prompt beside its item. wants_...: the context has to give this label.
CREATE VIEW judged AS
  SELECT p.*, q.question, q.letters, q.options,
    f.item_id IS NOT NULL AS known, f.image_id AS item_image, f.candidates AS item_candidates,
    f.question AS item_question, f.options AS item_options, f.target,
    f.urban, f.asset_index, f.water_index, f.sanitation_index, f.under5_mort, f.women_edu,
    f.women_bmi,
    test IN ('T2', 'T4') AS reduced,
    f.asset_index IS NOT NULL AND f.target <> 'asset_index' AS wants_asset_index,
    f.water_index IS NOT NULL AND f.target <> 'water_index' AND NOT reduced AS wants_water_index,
    f.sanitation_index IS NOT NULL AND f.target <> 'sanitation_index' AS wants_sanitation_index,
    f.under5_mort IS NOT NULL AND f.target <> 'under5_mort' AND NOT reduced AS wants_under5_mort,
    f.women_edu IS NOT NULL AND f.target <> 'women_edu' AND NOT reduced AS wants_women_edu,
    f.women_bmi IS NOT NULL AND f.target <> 'women_bmi' AND NOT reduced AS wants_women_bmi,
    f.urban IN ('U', 'R') AS wants_urban
  FROM parsed p
  JOIN forms q USING (rest)
  LEFT JOIN prompt_items f USING (task, item_id);

-- prompt-text-form (gate, needs own build): a prompt is a question, its context and options if any,
-- and the closing line (Tables C and D)
rest IN (SELECT rest FROM forms WHERE complete);

-- prompt-test-of-task (gate): multiple choice is asked under T1 to T5, regression under T2 and T5
(task, test) IN (SELECT task, test FROM tests);

-- prompts-complete (gate, needs own build): an item needs every test of its task
(task, item_id) NOT IN (
  SELECT task, item_id
  FROM (SELECT task, item_id, count(*) AS n FROM rows GROUP BY ALL)
  LEFT JOIN (SELECT task, count(*) AS every FROM tests GROUP BY task) USING (task)
  WHERE n IS DISTINCT FROM every
);

-- prompt-item-exists (gate, needs items_mcq, items_regression): the prompt's item must be in the
-- item table of its task
known;

-- prompt-image-of-item (gate, needs items_mcq, items_regression): the prompt's image must be its
-- item's
NOT known OR image_id = item_image;

-- candidates-match-options (gate, needs items_mcq, items_regression, own build): candidates and
-- VALID OPTIONS must be the letters of the item's options, or the digits
NOT known OR (candidates = item_candidates AND letters = if(task = 'mcq', item_candidates, ''));

-- prompt-text-of-item (gate, needs items_mcq, items_regression, own build): the prompt must ask its
-- item's question and list its options
NOT known OR (question = item_question AND options = item_options);

-- tests-differ-in-context-only (gate, needs own build): without the Context line every test must
-- ask what T5 asks, letter for letter
NOT EXISTS (FROM bare b WHERE b.task = r.task AND b.item_id = r.item_id AND b.rest <> r.rest);

-- context-line-unexpected (gate): T5 has no Context line
line = '' OR test <> 'T5';

-- context-form (gate, needs own build): T1 and T2 give values, T3 and T4 names; T2 and T4 only the
-- reduced ones (Table E)
line = '' OR test = 'T5' OR (
  starts_with(line, if(test IN ('T1', 'T2'), 'Given: ', 'You may consider: '))
  AND NOT (reduced AND regexp_matches(line,
    '\b(?:water_index|under_5_mortality_rate|woman_education_years|woman_bmi)\b'))
);

-- context-line-missing (gate, needs items_mcq, items_regression, own build): T1 to T4 need a
-- Context line when the test shows names or a shown value is known
NOT known OR line <> '' OR NOT (
  test IN ('T3', 'T4')
  OR (test IN ('T1', 'T2') AND (wants_asset_index OR wants_water_index OR wants_sanitation_index
    OR wants_under5_mort OR wants_women_edu OR wants_women_bmi OR wants_urban))
);

-- context-values (gate, needs items_mcq, items_regression, own build): the context must give the
-- item's known values, one decimal, and no others
NOT known OR line = '' OR test NOT IN ('T1', 'T2') OR (
  agrees(stated(line, 'asset_index'), asset_index, wants_asset_index)
  AND agrees(stated(line, 'water_index'), water_index, wants_water_index)
  AND agrees(stated(line, 'sanitation_index'), sanitation_index, wants_sanitation_index)
  AND agrees(stated(line, 'under_5_mortality_rate'), under5_mort, wants_under5_mort)
  AND agrees(stated(line, 'woman_education_years'), women_edu, wants_women_edu)
  AND agrees(stated(line, 'woman_bmi'), women_bmi, wants_women_bmi)
  AND CASE stated(line, 'urban')
    WHEN '' THEN NOT wants_urban
    WHEN 'Urban' THEN wants_urban AND urban = 'U'
    WHEN 'Rural' THEN wants_urban AND urban = 'R'
  END
);

-- target-leak (gate, needs items_mcq, items_regression): a regression prompt doesn't show its own
-- target in the context
NOT known OR CASE target
  WHEN 'asset_index' THEN NOT regexp_matches(line, '\basset_index\b')
  WHEN 'water_index' THEN NOT regexp_matches(line, '\bwater_index\b')
  WHEN 'sanitation_index' THEN NOT regexp_matches(line, '\bsanitation_index\b')
  WHEN 'under5_mort' THEN NOT regexp_matches(line, '\bunder_5_mortality_rate\b')
  WHEN 'women_edu' THEN NOT regexp_matches(line, '\bwoman_education_years\b')
  WHEN 'women_bmi' THEN NOT regexp_matches(line, '\bwoman_bmi\b')
  ELSE true
END;
