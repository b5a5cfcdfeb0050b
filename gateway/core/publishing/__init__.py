"""What is published: to whom it goes, what there is room for, and who sent it."""
