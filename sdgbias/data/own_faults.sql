-- What can be wrong with a row of somebody's own questions (benchmark/own.py), by rule: line,
-- message. Tables: rows (line, the columns of items_own as the author's cells), columns (field,
-- name: the author's column), units (unit), pictures (picture, image_id, message). Functions:
-- quoted(text), one_of(what, text, valid texts).

-- name: definitions
CREATE VIEW questions AS
SELECT *, [option_a, option_b, option_c, option_d, option_e, option_f, option_g, option_h, option_i,
           option_j] AS options,
       list_filter(options, lambda cell: cell <> '') AS filled,
       len(filled) = 0 AND concat(own_id, cluster_id, question, context, answer, split, picture) = ''
         AS is_empty,
       len(filled) >= 2 AND options[:len(filled)] = filled AND list_unique(filled) = len(filled)
         AND NOT regexp_matches(array_to_string(filled, ''), '[\r\n]') AS is_sound
FROM rows;
CREATE VIEW cells AS
SELECT line, field, name, cell, row_number() OVER (PARTITION BY line ORDER BY field) AS position
FROM (UNPIVOT rows ON COLUMNS(* EXCLUDE (line, item_id)) INTO NAME field VALUE cell)
JOIN columns USING (field)
WHERE line IN (SELECT line FROM questions WHERE NOT is_empty);
CREATE VIEW option_cells AS FROM cells WHERE starts_with(field, 'option_');
CREATE VIEW answers AS
SELECT *, list_transform(range(len(filled)), lambda place: chr((65 + place)::INT)) AS letters,
       -- an accented letter may be written as one character or as two
       coalesce(list_position(list_transform(filled, lambda cell: nfc_normalize(cell)),
                              nfc_normalize(answer)), 0) AS by_text,
       coalesce(list_position(letters, answer), 0) AS by_letter
FROM questions
WHERE answer <> '' AND is_sound;
CREATE VIEW golds AS
SELECT *, letters[greatest(by_text, by_letter)] AS letter
FROM answers
WHERE greatest(by_text, by_letter) > 0 AND (by_text = by_letter OR least(by_text, by_letter) = 0);

-- name: empty-row
SELECT line, 'is an empty row; delete it' FROM questions WHERE is_empty

-- name: empty-cell
SELECT line, 'column ' || quoted(name) || ' is empty; fill it'
FROM cells
WHERE cell = '' AND field IN ('own_id', 'question', 'answer', 'cluster_id')

-- name: id-once
SELECT line, 'id ' || quoted(own_id) || ' is also that of ' || unit || ' ' || first_line
         || '; ids are unique'
FROM (SELECT line, own_id, min(line) OVER (PARTITION BY own_id) AS first_line FROM rows), units
WHERE own_id <> '' AND line > first_line

-- name: options-enough
SELECT line, CASE len(filled) WHEN 0 THEN 'has no option' ELSE 'has 1 option' END
         || '; fill 2 to 10 option columns'
FROM questions
WHERE len(filled) < 2 AND NOT is_empty

-- name: options-without-a-gap
SELECT line, 'option ' || quoted(min_by(name, position) FILTER (cell = '')) || ' is empty and '
         || quoted(max_by(name, position) FILTER (cell <> ''))
         || ' is not; leave options out at the end only'
FROM option_cells
GROUP BY line
HAVING count(*) FILTER (cell <> '') >= 2
   AND min(position) FILTER (cell = '') < max(position) FILTER (cell <> '')

-- name: options-differ
SELECT line, 'options ' || string_agg(quoted(name), ' and ' ORDER BY position) || ' are both '
         || quoted(cell) || '; options of a question differ'
FROM option_cells
WHERE cell <> ''
GROUP BY line, cell
HAVING count(*) > 1

-- name: option-on-one-line
SELECT line, 'option ' || quoted(cell) || ' has several lines; write it in one'
FROM option_cells
WHERE regexp_matches(cell, '[\r\n]')

-- name: answer-among-options
SELECT line, one_of('answer', answer, letters || filled)
FROM answers
WHERE by_text = 0 AND by_letter = 0

-- name: answer-with-one-reading
SELECT line, 'answer ' || quoted(answer) || ' is the letter of option '
         || quoted(filled[by_letter]) || ' and the text of option ' || letters[by_text]
         || '; write the text of the option in other words'
FROM answers
WHERE by_text > 0 AND by_letter > 0 AND by_text <> by_letter

-- name: answers-agree
SELECT line, 'answer ' || letter || ' contradicts ' || unit || ' ' || first_line || ', which has '
         || first_letter || ' for the same text, options, picture and context; keep one of the two'
FROM (
  SELECT line, letter, first_value(letter) OVER same AS first_letter,
         first_value(line) OVER same AS first_line
  FROM golds
  WINDOW same AS (PARTITION BY question, filled, picture, context ORDER BY line)
), units
WHERE letter <> first_letter

-- name: split-known
SELECT line, 'split (column ' || quoted(name) || ') '
         || CASE cell WHEN '' THEN 'is empty' ELSE 'is ' || quoted(cell) END
         || '; write val or test'
FROM cells
WHERE field = 'split' AND cell NOT IN ('val', 'test')

-- name: split-test
SELECT 0, 'no question has split test (column ' || quoted(any_value(name))
         || '); results are of split test'
FROM cells
WHERE field = 'split'
HAVING bool_and(cell = 'val')

-- name: picture-usable
SELECT line, message FROM rows JOIN pictures USING (picture) WHERE message <> ''
