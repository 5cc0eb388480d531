"""Items, prompts, quality rules, card, review and release of a benchmark. Independent of models.

* build: from a raw folder to a benchmark folder, stage by stage
* items, draw, splits, evidence: questions with gold answers, which are drawn, and val and test
* item_columns, prompts: columns of the items, and the prompts made of them
* people, people_items: the same for pictures of people
* own, own_spec: the same for a folder of custom questions
* first_look: a few questions of a benchmark as one of its own
* quality, card, review, release: rules, dataset card, human review, the authors' formats
"""
