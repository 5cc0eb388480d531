-- Rules of items_own.parquet that span columns, rows or tables (CONTRIBUTING.md).

CREATE VIEW judged AS
  SELECT *,
    [option_a, option_b, option_c, option_d, option_e, option_f, option_g, option_h, option_i,
      option_j] AS cells,
    list_filter(cells, lambda cell: cell <> '') AS filled
  FROM rows;

-- options-whole (gate): a question has 2 to 10 different options, empty cells after the last only
len(filled) >= 2 AND cells[:len(filled)] = filled AND list_unique(filled) = len(filled);

-- answer-among-options (gate): answer is the letter of one of the question's options
length(answer) = 1 AND contains('ABCDEFGHIJ'[:len(filled)], answer);

-- groups-named (gate): groups is a JSON object of texts with the same names in every row
group_names(groups) = (SELECT group_names(groups) FROM rows WHERE row_no = 0);

-- image-known (gate, needs images_own): the question's picture must be in images.parquet
image_id = '' OR image_id IN (SELECT image_id FROM images_own);

-- item-has-prompt (gate, needs prompts_own): every question must have its prompt
item_id IN (SELECT item_id FROM prompts_own WHERE test = 'T5');
