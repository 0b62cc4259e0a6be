// Code and tables that scroll can be reached by keyboard.
for (const part of document.querySelectorAll("pre, .table-wrapper, .cell_output, .output")) {
  if (part.scrollWidth > part.clientWidth || part.scrollHeight > part.clientHeight) part.tabIndex = 0;
}
