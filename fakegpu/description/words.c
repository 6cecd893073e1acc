#include "description/words.h"

#include <ctype.h>
#include <string.h>

static bool is_blank(char letter)
{
    return letter == ' ' || letter == '\t';
}

void line_split(struct line *line, const char *text, size_t size)
{
    const char *comment = memchr(text, '#', size);
    if (comment)
        size = (size_t)(comment - text);
    while (size && is_blank(text[0]))
        text++, size--;
    while (size && is_blank(text[size - 1]))
        size--;
    memcpy(line->text, text, size);
    line->text[size] = '\0';
    memcpy(line->split, line->text, size + 1);
    line->rest = line->text + size;
    line->word_count = 0;

    char *at = line->split;
    while (*at) {
        if (line->word_count < WORDS_MAX)
            line->words[line->word_count] = at;
        if (line->word_count == 1)
            line->rest = line->text + (at - line->split);
        line->word_count++;
        while (*at && !is_blank(*at))
            at++;
        while (*at && is_blank(*at))
            *at++ = '\0';
    }
    line->words[line->word_count < WORDS_MAX ? line->word_count : WORDS_MAX] = NULL;
}

bool word_number(const char *word, uint32_t least, uint32_t most, uint32_t *value)
{
    uint64_t sum = 0;
    size_t digits = 0;
    for (; word[digits]; digits++) {
        if (digits == 10 || word[digits] < '0' || word[digits] > '9')
            return false;
        sum = sum * 10 + (uint64_t)(word[digits] - '0');
    }
    if (!digits || sum < least || sum > most)
        return false;
    *value = (uint32_t)sum;
    return true;
}

bool word_pair(const char *word, uint32_t *major, uint32_t *minor)
{
    char left[4];
    const char *dot = strchr(word, '.');
    if (!dot || dot - word > 3 || strlen(dot + 1) > 3)
        return false;
    memcpy(left, word, (size_t)(dot - word));
    left[dot - word] = '\0';
    return word_number(left, 0, 999, major) && word_number(dot + 1, 0, 999, minor);
}

int word_choice(const char *word, const char *const *choices)
{
    for (int i = 0; choices[i]; i++) {
        if (!strcmp(word, choices[i]))
            return i;
    }
    return -1;
}

bool word_uuid(const char *word)
{
    static const char form[] = "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
    for (size_t i = 0; i < sizeof form; i++) {
        bool right = form[i] == 'x' ? word[i] && strchr("0123456789abcdef", word[i]) : word[i] == form[i];
        if (!right)
            return false; /* also at the end of a word that is too short */
    }
    return true;
}

/* Reads exactly `digits` hexadecimal digits and the mark after them. */
static const char *hexadecimal(const char *at, size_t digits, char mark, uint32_t *value)
{
    *value = 0;
    for (size_t i = 0; i < digits; i++, at++) {
        if (!*at || !isxdigit((unsigned char)*at))
            return NULL;
        char low = (char)(*at | 0x20);
        *value = *value * 16 + (uint32_t)(*at <= '9' ? *at - '0' : low - 'a' + 10);
    }
    return *at == mark ? at + 1 : NULL;
}

bool word_pci(const char *word, struct pci_address *address)
{
    const char *colon = strchr(word, ':');
    if (!colon || (colon - word != 4 && colon - word != 8))
        return false;
    const char *at = hexadecimal(word, (size_t)(colon - word), ':', &address->domain);
    at = at ? hexadecimal(at, 2, ':', &address->bus) : NULL;
    at = at ? hexadecimal(at, 2, '.', &address->device) : NULL;
    at = at ? hexadecimal(at, 1, '\0', &address->function) : NULL;
    return at && address->device < 32 && address->function < 8;
}

bool word_cpus(const char *word, uint64_t cpus[CPUS_MAX / 64])
{
    char copy[LINE_MAX_BYTES + 1];
    strcpy(copy, word); /* a word is part of a line */
    memset(cpus, 0, CPUS_MAX / 8);
    int64_t before = -1;
    for (char *part = copy, *next; part; part = next) {
        uint32_t first, last;
        if ((next = strchr(part, ',')))
            *next++ = '\0';
        char *dash = strchr(part, '-');
        if (dash)
            *dash = '\0';
        if (!word_number(part, 0, CPUS_MAX - 1, &first))
            return false;
        last = first;
        if (dash && !word_number(dash + 1, first, CPUS_MAX - 1, &last))
            return false;
        if ((int64_t)first <= before)
            return false;
        before = last;
        for (uint32_t cpu = first; cpu <= last; cpu++)
            cpus[cpu / 64] |= UINT64_C(1) << (cpu % 64);
    }
    return true;
}

size_t word_distance(const char *left, const char *right)
{
    enum { LONGEST = 24 };
    size_t row[LONGEST + 1], width = strlen(right);
    if (strlen(left) > LONGEST || width > LONGEST)
        return LONGEST;
    for (size_t j = 0; j <= width; j++)
        row[j] = j;
    for (size_t i = 1; left[i - 1]; i++) {
        size_t corner = row[0];
        row[0] = i;
        for (size_t j = 1; j <= width; j++) {
            size_t best = corner + (left[i - 1] != right[j - 1]);
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            corner = row[j];
            row[j] = best;
        }
    }
    return row[width];
}
