"""Result files and what is made of them. Reads files only; requirement texts come with the file."""
