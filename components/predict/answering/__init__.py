"""The answers for rows, and the files with them.

In come a chunk of the source, the plan of the model and the readers of rows. Out go answers in the order of the rows,
and the Parquet files with their manifest. Which columns the output has and how it is written may be changed here alone.
"""
