"""`play`: a trained policy for whole episodes, as a table, a video or in a viewer."""
