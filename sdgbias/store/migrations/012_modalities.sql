-- What the picture of a question shows: 'photo, tile, nightlights'. NULL: not known (questions stored by earlier versions, own suites).

ALTER TABLE items ADD COLUMN modalities VARCHAR;
