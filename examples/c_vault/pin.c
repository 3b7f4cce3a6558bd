/* Reads the PIN and what was entered, a line each; exit code 0 if they are the same. */
#include <stdio.h>
#include <string.h>

int main(void)
{
    char pin[64], entered[64];

    if (!fgets(pin, sizeof pin, stdin) || !fgets(entered, sizeof entered, stdin))
        return 2;
    entered[strcspn(entered, "\r\n")] = 0;
    return strncmp(pin, entered, strlen(entered)) != 0;
}
