#!/bin/sh
sort -n numbers.txt | tail -n 1 > answer.txt
