-- Rules of people.parquet that span columns, rows or tables (CONTRIBUTING.md).

-- groups-known (gate): a group is one of the attribute's, or unknown
gender IN (SELECT name FROM person_groups
  WHERE attribute = 'gender') AND skin IN (SELECT name
  FROM person_groups WHERE attribute = 'skin') AND age IN (SELECT name
  FROM person_groups WHERE attribute = 'age');

-- unknown-has-reason (gate): an unknown group says why, a known one has nothing to say
(gender = 'unknown') = (gender_why <> '') AND (skin = 'unknown') = (skin_why <> '') AND (age =
    'unknown') = (age_why <> '');

-- class-known (quarantine): a person has one of the 52 classes; nothing else can be asked about
class1 IN (SELECT name FROM classes);

-- box-has-area (quarantine): the person's box must lie in the picture and have an area
x >= 0 AND y >= 0 AND w > 0 AND h > 0;
