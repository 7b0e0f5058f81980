"""`mjfleet report`, `plot` and `compare`: what runs have logged, as a page, a picture or a table.

logged_run.py reads runs, and groups those that differ in their seed alone into rows. curves.py
averages over a row's runs, results.py compares rows; page.py, picture.py and table.py show that.
"""
