-- Rules of prompts_own.parquet that span columns, rows or tables (CONTRIBUTING.md).

-- item-known (gate, needs items_own): the prompt's question must be in items_own.parquet
item_id IN (SELECT item_id FROM items_own);

-- text-as-specified (gate, needs items_own): the text must be the template's for question, context
-- and options
(item_id, test, text) IN (SELECT item_id, test, text FROM own_prompts);

-- image-of-item (gate, needs items_own): image_id must be that of the question
(item_id, image_id) IN (SELECT item_id, image_id FROM items_own);

-- candidates-of-options (gate, needs items_own): candidates are the letters of the question's
-- options
(item_id, candidates) IN (SELECT item_id, candidates FROM own_prompts);
