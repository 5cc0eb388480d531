"""Reading and checking raw folders, rendering images, synthetic samples. Independent of
questions.

* text_tables: CSV files of other people as text, their years and numbers, and what is refused
* clusters, regions: DHS clusters, and the survey regions that they lie in
* indicators, series, sources: what is asked about, its values, and who publishes them
* images: tiles and photos, rendered once and stored by content
* facet: annotated pictures of people
* synthetic: samples in the layouts of the real data
* check: `sdgbias raw check`
"""
