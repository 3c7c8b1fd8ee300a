"""Tables whose cells are blank when the model is used: what serves them best, by which rule.

Written before the run that decides:

- Rows to train on and to test on are drawn four times. Blanks of the tables themselves stay where they are.
  Of the test rows' other cells 0, 25, 50 and 75 % are made blank, each cell at random, or 25, 50 and 75 % of
  the columns for all rows; the same for all contenders. A row of the comparison is a table, a kind of blanks
  and a share; its numbers are means over splits.
- "Ours" is one of ten candidates: `MastClassifier` or `MastRegressor` with its default penalty, with ten
  or a hundred times that, or with indicators; `MaskedTraining` of trees, with its imputer, with NaN, or with
  NaN and small trees; `MaskedTraining` of the linear model behind the mean and indicators, with one or ten
  times the penalty; and ``MaskedTraining(shares=(0,))`` of the linear model, plain behind our imputer.
  Cross-validation on training rows chooses one of them for each split, kind and share, by log-loss or R²,
  with blanks of that kind and share in other cells and columns than at the test. The same choice is judged
  by AUC and by log-loss.
- Goals: AUC the best of all contenders or within .005 of the best in 9 of 10 classification rows, log-loss
  the best in 2 of 3 of them; R² the best or within .01 in 9 of 10 regression rows. The best is taken
  among "ours" and all contenders that people could use without MAST's estimators: plain models, those
  behind our imputer, and candidates that are trained on masked copies without our imputer, with all
  their settings.
- Beside the goals: how many rows hold if linear models whose penalty scikit-learn chose count as well.
"""
