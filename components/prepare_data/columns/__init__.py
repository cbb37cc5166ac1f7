"""What a column is: its kind, its name and its values.

In come names, types and first values of columns. Out go the kinds of the columns, and `Source`, which brings the rows
of any reader into these kinds. What counts as a number, a date, a category or an ID may be changed here alone.
"""
