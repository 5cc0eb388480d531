"""Reading and checking raw folders, rendering images, synthetic samples. Independent of
questions."""
