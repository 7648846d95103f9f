"""Tasks, a file or a folder each: data, loss, metric, recipe and the paper's rows.

`adding`, `pixels`, `text`, `skeleton` and `series` are tasks. `recipe` is the protocol that they follow, with `table`
for what is shown of their runs; `rows` lists all recipes; `runs` trains them and opens their folders.
"""
