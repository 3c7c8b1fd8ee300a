"""Tables whose cells are blank when the model is used: what serves them best, by which rule.

Written before the run that decides:

- Rows to train on and to test on are drawn five times. Blanks of the tables themselves stay where they are.
  Of the test rows' other cells 0, 25, 50 and 75 % are made blank, each cell at random, or 25, 50 and 75 % of
  the columns for all rows; the same for all contenders. A row of the comparison is a table, a kind of blanks
  and a share; its numbers are means over splits.
- "Ours" is one of four estimators, each with its defaults: `MastClassifier` or `MastRegressor`; trees
  (HistGradientBoosting) in `MaskedTraining`, with its imputer, or with NaN, or not trained for blanks
  (``shares=(0,)``). Three-fold cross-validation on training rows chooses, for each split and share, by
  log-loss or R² with that share of the cells blank.
- Goals: AUC the best of all contenders or within .005 of the best in 9 of 10 classification rows, log-loss
  the best in 2 of 3 of them; R² the best or within .01 in 9 of 10 regression rows. The best is taken
  among "ours" and all contenders that people could use without MAST's estimators, trees on masked copies and
  plain models behind our imputer among them.
"""
