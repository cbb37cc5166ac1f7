"""The model that is asked.

In comes the address or the folder of a model. Out goes a plan of what it takes and answers, and a function of rows that
follows the plan. How a model is loaded and asked may be changed here alone.
"""
