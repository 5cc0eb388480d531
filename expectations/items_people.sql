-- Rules of items_people.parquet that span columns, rows or tables (CONTRIBUTING.md).

-- person-known (gate, needs people): the item's person must be in people.parquet
person_id IN (SELECT person_id FROM people);

-- gold-fits (gate): gold is yes for the annotated class, no for another one, else the class
CASE WHEN prompt IN ('p2', 'p3') THEN gold IN ('yes', 'no') AND (gold = 'yes') = (asked = class1)
  AND asked IN (SELECT name FROM classes) WHEN prompt = 'p1' THEN gold = class1 AND asked = '' END;

-- negative-is-no (gate): a question about a wrong class has the gold answer no
negative = (gold = 'no');

-- class-of-person (gate, needs people): class1 must be the person's
(person_id, class1) IN (SELECT person_id, class1 FROM people);

-- picture-of-person (gate, needs people): image_id must be the person's
(person_id, image_id) IN (SELECT person_id, image_id FROM people);

-- split-of-person (gate, needs people): split must be the person's
(person_id, split) IN (SELECT person_id, split FROM people);

-- item-has-prompt (gate, needs prompts_people): every question must have its prompt
item_id IN (SELECT item_id FROM prompts_people);
