-- Rules of prompts_people.parquet that span columns, rows or tables (CONTRIBUTING.md).

-- item-known (gate, needs items_people): the prompt's question must be in items_people.parquet
item_id IN (SELECT item_id FROM items_people);

-- prompt-of-item (gate, needs items_people): task and test must be those of the question
(item_id, test, task) IN (SELECT item_id, prompt, if(prompt IN ('p2', 'p3'), 'choice', 'direct')
  FROM items_people);

-- text-as-specified (gate, needs items_people): the text must be the template's for what is asked,
-- class names and list as FACET has them
(item_id, text) IN (SELECT item_id, text
  FROM rows JOIN items_people USING (item_id)
  WHERE as_specified(text, prompt, asked));

-- image-of-item (gate, needs items_people): image_id must be that of the question's person
(item_id, image_id) IN (SELECT item_id, image_id FROM items_people);

-- candidates-of-task (gate): p2 and p3 are scored over A, B, C; free answers over nothing
candidates = if(task = 'choice', 'ABC', '');
