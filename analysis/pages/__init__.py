"""The pages one opens: the report of a run or a sweep, its figures and words, and the transcripts."""
