-- Rules that items_mcq.parquet and items_regression.parquet share (CONTRIBUTING.md); task() is defined
-- in the file of each.

CREATE MACRO words(text) AS (trim(regexp_replace(lower(text), '[^\p{L}\p{N}]+', ' ', 'g')));

CREATE TEMP TABLE wordings AS
  SELECT *, array_to_string(list_transform([*COLUMNS(*)], lambda text: words(text)), chr(31)) AS asked
  FROM (
    SELECT DISTINCT
      COLUMNS(lambda name: name IN ('question', 'option_a', 'option_b', 'option_c'))
    FROM rows
  );

CREATE VIEW worded AS
  SELECT row_no, cluster_id, item_id, image_id, urban, asset_index, water_index, sanitation_index,
    under5_mort, women_edu, women_bmi, asked
  FROM rows NATURAL JOIN wordings;

CREATE VIEW grouped AS
  SELECT w.*, coalesce(g.image_group, w.image_id) AS image_group
  FROM worded w
  LEFT JOIN (SELECT DISTINCT ON (image_id) image_id, image_group FROM images) g USING (image_id);

-- question-present (gate): an item needs a question
length(question) >= 10;

-- item-country-known (gate, needs own build): cname and iso3 must be one of the 56 countries
(cname, iso3) IN (SELECT cname, iso3 FROM countries);

-- item-cluster-exists (gate, needs clusters): the item's cluster must be in clusters.parquet
cluster_id IN (SELECT cluster_id FROM clusters);

-- item-image-exists (gate, needs images): the item's image must be in images.parquet
image_id IN (SELECT image_id FROM images);

-- image-of-cluster (gate, needs images): the item's image must be that of its cluster
(cluster_id, image_id) IN (SELECT cluster_id, image_id FROM images);

-- modalities-of-image (gate, needs images.modalities): what the item says its picture shows must be
-- what the picture shows
(image_id, modalities) IN (SELECT image_id, modalities FROM images);

-- labels-of-cluster (gate, needs clusters): place, year, urban and the six labels must be those of
-- the item's cluster
ROW(cluster_id, cname, iso3, country, year, urban, asset_index, water_index, sanitation_index,
  under5_mort, women_edu, women_bmi) IN (
  SELECT ROW(cluster_id, cname, iso3, country, year, urban, asset_index, water_index,
    sanitation_index, under5_mort, women_edu, women_bmi) FROM clusters
);

-- year-whole (gate): year must be a whole number
TRY_CAST(year AS DOUBLE) % 1 = 0;

-- split-by-id (gate, needs split id, own build): split must follow the authors' md5 rule of task
-- and id
split = if(('0x' || left(md5(task() || '-' || item_id), 15))::UBIGINT / pow(16, 15) < 0.2, 'val', 'test');

-- split-place-by-country (gate): a country's items must all be on one side of split_place
cname NOT IN (SELECT cname FROM rows GROUP BY cname HAVING count(DISTINCT split_place) > 1);

-- item-has-prompts (gate, needs prompts): every item must have prompts
item_id IN (SELECT DISTINCT item_id FROM prompts WHERE task = task());

-- duplicate-item (quarantine): a question, up to case and punctuation, is asked once of an image;
-- the earliest cluster's item stays
SELECT row_no FROM worded
QUALIFY row_number() OVER (PARTITION BY asked, image_id ORDER BY cluster_id, item_id) > 1;

-- near-duplicate-item (quarantine, needs images): a question is asked once beside the same context
-- of nearly the same image; the earliest cluster's item stays
SELECT row_no FROM grouped
QUALIFY row_number() OVER (
  PARTITION BY asked, image_group, round_even(asset_index, 1) + 0, round_even(water_index, 1) + 0,
    round_even(sanitation_index, 1) + 0, round_even(under5_mort, 1) + 0,
    round_even(women_edu, 1) + 0, round_even(women_bmi, 1) + 0, urban
  ORDER BY cluster_id, item_id
) > 1;
