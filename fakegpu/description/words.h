/* A line of a description, split into words, and the readers of single words. */
#ifndef FAKEGPU_DESCRIPTION_WORDS_H
#define FAKEGPU_DESCRIPTION_WORDS_H

#include "description/description.h"

enum { WORDS_MAX = 10 };

struct line {
    char text[LINE_MAX_BYTES + 1];  /* without comment, blanks at both ends cut */
    char split[LINE_MAX_BYTES + 1]; /* the same, cut at blanks; `words` points into it */
    char *words[WORDS_MAX + 1];     /* the key first; words past WORDS_MAX are counted only */
    size_t word_count;
    const char *rest;               /* in `text`: what follows the key, "" for nothing */
};

/* Splits a line that holds printable ASCII and tabs only. */
void line_split(struct line *line, const char *text, size_t size);

/* Decimal digits only, at most ten of them, within the bounds. */
bool word_number(const char *word, uint32_t least, uint32_t most, uint32_t *value);

/* "MAJOR.MINOR", each at most three digits. */
bool word_pair(const char *word, uint32_t *major, uint32_t *minor);

/* Which of `choices` (ended by NULL) the word is; -1 for none. */
int word_choice(const char *word, const char *const *choices);

/* "GPU-" and 8-4-4-4-12 hexadecimal digits in lower case. */
bool word_uuid(const char *word);

/* DOMAIN:BUS:DEVICE.FUNCTION, four or eight hexadecimal digits of domain. */
bool word_pci(const char *word, struct pci_address *address);

/* "0-15,32-47": numbers and ranges that rise, below CPUS_MAX. */
bool word_cpus(const char *word, uint64_t cpus[CPUS_MAX / 64]);

/* How many letters must change to turn one word into the other; for "did you mean". */
size_t word_distance(const char *left, const char *right);

#endif
