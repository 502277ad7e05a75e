/* Loads the page again when another cell is in the journal. What is shown stays: it is in the address. */
(() => {
  const { version } = document.body.dataset;
  const ask = async () => {
    try {
      const answer = await fetch("version", { cache: "no-store" });
      if ((await answer.text()) !== version) return location.reload();
      setTimeout(ask, 2000);
    } catch {
      document.getElementById("state").textContent = "The run has ended. Its report is in the run's folder.";
    }
  };
  setTimeout(ask, 2000);
})();
