"""Rows in few numbers and short texts. Pure.

In come numbers in batches, and rows in the form of a dataset. Out go means, deviations and ranges, histograms, and the
texts of a row for tables of reports. How numbers are added up, into which bins they are counted, and how a value is
written may be changed here alone.
"""
