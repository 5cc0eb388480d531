-- Decisions that older versions read out of sentences: columns, filled once from the sentences of then, which leave the notes.

ALTER TABLE verdicts ADD COLUMN side VARCHAR;                          -- 'at_least' | 'at_most': a bound of the value itself; '' a change
ALTER TABLE verdicts ADD COLUMN quarantines BOOLEAN;                   -- a breach of a rule with `then: quarantine`
ALTER TABLE verdicts ADD COLUMN required BOOLEAN;                      -- MISSING, of a rule that requires its metric
UPDATE verdicts SET
    side = coalesce(regexp_extract("level", '(at_least|at_most)$'), ''),
    "level" = trim(regexp_replace("level", '(at_least|at_most)$', '')),
    quarantines = coalesce(verdict = 'BREACH' AND contains(note, 'this rule quarantines'), false),
    required = coalesce(verdict = 'MISSING' AND ends_with(note, 'required'), false),
    note = regexp_replace(note, '(^|; )(this rule quarantines|required)$', '');
