"""The recipes: functions that give a stage its directives. `td.recipes` has the public ones."""
